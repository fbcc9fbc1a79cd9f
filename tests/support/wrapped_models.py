# SPDX-License-Identifier: Apache-2.0
"""Systems of models that are at hand, as those of factories."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import framework_name, framework_of, system_class
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.models.sources import ModelSource


def wrap_model(model: Any, spec: SystemSpec) -> FrameworkSystem:
    """Return the system of an object, in the framework of the spec or its own."""
    framework = framework_name(spec.framework)
    source = ModelSource("factory", spec.model, spec.model)
    found = system_class(framework_of(model) if framework == "auto" else framework)
    return found(spec, source, model=model)
