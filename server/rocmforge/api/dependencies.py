"""What handlers are given by name: see `build_app`."""

from __future__ import annotations

from litestar.di import NamedDependency

from rocmforge.api.service import Service
from rocmforge.api.settings import ApiSettings

ServiceDep = NamedDependency[Service]
SettingsDep = NamedDependency[ApiSettings]
