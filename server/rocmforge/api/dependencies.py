"""The dependencies that handlers are given by name: see `build_app`."""

from __future__ import annotations

from litestar.di import NamedDependency

from rocmforge.api.acquire import Models
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.fleet.fleet import Fleet

FleetMetricsDep = NamedDependency[FleetMetrics]
FleetDep = NamedDependency[Fleet]
ModelsDep = NamedDependency[Models]
SettingsDep = NamedDependency[ApiSettings]
