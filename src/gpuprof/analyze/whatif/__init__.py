# SPDX-License-Identifier: Apache-2.0
"""What a change would gain: the recorded run is executed again, with some of it faster or gone.

Modification, Selection (selection)   what is removed or faster: intervals on threads, work on GPUs
          |
HostLanes (host), GpuItems (gpu), Fetches (loader)   a run as items on threads and streams, with their waits
          |
RecordedProcess, ReplayProgram (program)   a process as it was recorded, and with changes
          |
step_gain -> StepGain (step_gain)   the gain of a step, with the variation of steps and the error of replays
          |
predict, replay_changes -> WhatIf (prediction)   the native replay, and what follows from it
"""
