"""What handlers are given by name: see `build_app`."""

from __future__ import annotations

from litestar.di import NamedDependency

from rocmforge.api.fleet.dispatch import Dispatch
from rocmforge.api.fleet.fleet import Fleet
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.fleet import FleetMetrics

FleetMetricsDep = NamedDependency[FleetMetrics]
FleetDep = NamedDependency[Fleet]
DispatchDep = NamedDependency[Dispatch]
SettingsDep = NamedDependency[ApiSettings]
