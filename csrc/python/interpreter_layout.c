/* SPDX-License-Identifier: Apache-2.0 */
/* In C: the interpreter's internal headers are not C++. */
#define Py_BUILD_CORE 1
#include "interpreter_layout.h"

#include <Python.h>
#include <limits.h>

#if PY_VERSION_HEX < 0x030f0000 && !defined(Py_GIL_DISABLED) && defined(__linux__)

#include <internal/pycore_interp.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#elif PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif

const gpuprof_interpreter_layout gpuprof_layout = {
    .is_known = 1,
    .thread_next = offsetof(PyThreadState, next),
    .thread_interpreter = offsetof(PyThreadState, interp),
    .thread_identity = offsetof(PyThreadState, thread_id),
    .thread_bytes = sizeof(PyThreadState),
    .code_first_line = offsetof(PyCodeObject, co_firstlineno),
    .code_path = offsetof(PyCodeObject, co_filename),
    .code_table = offsetof(PyCodeObject, co_linetable),
#if PY_VERSION_HEX >= 0x030b0000
    .interpreter_threads = offsetof(PyInterpreterState, threads.head),
    .thread_native_id = offsetof(PyThreadState, native_thread_id),
    .thread_chunk = offsetof(PyThreadState, datastack_chunk),
    .thread_chunk_top = offsetof(PyThreadState, datastack_top),
    .chunk_size = offsetof(_PyStackChunk, size),
    .frame_previous = offsetof(struct _PyInterpreterFrame, previous),
    .frame_owner = offsetof(struct _PyInterpreterFrame, owner),
    .frame_bytes = offsetof(struct _PyInterpreterFrame, localsplus),
    .code_name = offsetof(PyCodeObject, co_qualname),
    .code_instructions = offsetof(PyCodeObject, co_code_adaptive),
    .code_bytes = offsetof(PyCodeObject, co_code_adaptive),
#else
    .interpreter_threads = offsetof(PyInterpreterState, tstate_head),
    .thread_native_id = GPUPROF_NO_FIELD,
    .thread_frame = offsetof(PyThreadState, frame),
    .c_frame_current = GPUPROF_NO_FIELD,
    .thread_chunk = GPUPROF_NO_FIELD,
    .frame_code = offsetof(struct _frame, f_code),
    .frame_previous = offsetof(struct _frame, f_back),
    .frame_instruction = offsetof(struct _frame, f_lasti),
    .frame_owner = GPUPROF_NO_FIELD,
    .frame_bytes = sizeof(struct _frame),
    .code_name = offsetof(PyCodeObject, co_name),
    .code_instructions = GPUPROF_NO_FIELD,
    .code_bytes = sizeof(PyCodeObject),
#endif
#if PY_VERSION_HEX >= 0x030d0000
    .thread_frame = offsetof(PyThreadState, current_frame),
    .c_frame_current = GPUPROF_NO_FIELD,
    .frame_code = offsetof(struct _PyInterpreterFrame, f_executable),
    .frame_instruction = offsetof(struct _PyInterpreterFrame, instr_ptr),
#elif PY_VERSION_HEX >= 0x030b0000
    .thread_frame = offsetof(PyThreadState, cframe),
    .c_frame_current = offsetof(_PyCFrame, current_frame),
    .frame_code = offsetof(struct _PyInterpreterFrame, f_code),
    .frame_instruction = offsetof(struct _PyInterpreterFrame, prev_instr),
#endif
#if PY_VERSION_HEX >= 0x030e0000
    .first_owner_without_code = FRAME_OWNED_BY_INTERPRETER,
#elif PY_VERSION_HEX >= 0x030c0000
    .first_owner_without_code = FRAME_OWNED_BY_CSTACK,
#else
    .first_owner_without_code = CHAR_MAX,
#endif
};

#else

const gpuprof_interpreter_layout gpuprof_layout = {.is_known = 0};

#endif
