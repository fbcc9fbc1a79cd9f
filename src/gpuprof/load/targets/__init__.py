# SPDX-License-Identifier: Apache-2.0
"""What load is put on.

In process: `in_process` (callables and models in threads or an event loop), by the interfaces of `base`.
Servers: `server_target`, sent to by `client_process` in a process of its own, with an `event_loop` and a
`client.Client`: `http` (connections, with `http_requests` and `bodies`), `openai` (streams of tokens, with
`server_sent_events` and `token_times`), and `kserve_http` and `kserve_grpc` (`tensors`, `kserve_messages`).
`address` parses, resolves and allows where they are, and `statuses` reads how a request ended.
"""
