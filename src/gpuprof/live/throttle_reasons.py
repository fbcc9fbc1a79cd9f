# SPDX-License-Identifier: Apache-2.0
"""The throttle reasons of NVML's bit mask (nvmlClocksThrottleReasons), by the names that its manual has."""

from __future__ import annotations

THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def reasons_in(mask: int) -> list[str]:
    """Return the names of the reasons in a mask."""
    return [name for bit, name in THROTTLE_REASONS.items() if mask & bit]
