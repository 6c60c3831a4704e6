"""Power and energy out of trees of sysfs as drivers make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.sensors.power import energy_j, power_w


@pytest.mark.parametrize(
    ("files", "watts", "joules"),
    [
        ({"hwmon3/power1_average": "15000000\n"}, 15.0, None),
        ({"hwmon3/power1_input": "212000000\n"}, 212.0, None),
        ({"hwmon0/power1_average": "9000000", "hwmon0/power1_input": "8000000"}, 9.0, None),
        ({"hwmon0/power1_average": "", "hwmon0/power1_input": "8000000"}, 8.0, None),
        ({"hwmon7/power1_average": "1500", "hwmon7/energy1_input": "2500000"}, 0.0015, 2.5),
        ({"hwmon3/temp1_input": "45000"}, None, None),
        ({"hwmon3/power1_average": "not a number"}, None, None),
        ({}, None, None),
    ],
)
def test_sensors_are_read_or_missing(
    files: dict[str, str], watts: float | None, joules: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        file = tmp_path / "hwmon" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert power_w(tmp_path) == watts
    assert energy_j(tmp_path) == joules


def test_a_sensor_that_cannot_be_read_now_is_missing(tmp_path: Path) -> None:
    (tmp_path / "hwmon/hwmon3/power1_average").mkdir(parents=True)  # reading it is an OSError
    assert power_w(tmp_path) is None
