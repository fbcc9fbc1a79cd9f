# SPDX-License-Identifier: Apache-2.0
"""The roofline: counted work compared with measured ceilings, operator by operator (docs/roofline.md).

- counted.py: CountedRow, from the tables `work` and `counters`
- measured_spans.py, device_activity.py: MeasuredSpans and DeviceActivity, from spans, kernels and transfers
- join.py: Join, the timed calls of each counted operator
- utilization.py: Machine and Utilization, from the table `ceilings`; labels.py: Label and confidence
- operators.py, layers.py: RooflineRow with its Evidence (evidence.py) and Advice (advice.py)
- build.py: Roofline, from all of these; text.py, table.py: their text
"""
