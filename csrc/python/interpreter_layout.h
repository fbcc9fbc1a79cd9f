/* SPDX-License-Identifier: Apache-2.0 */
/* Where CPython keeps its threads and frames: offsets of the interpreter that this extension is built for. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPUPROF_NO_FIELD = -1 };

typedef struct {
    int is_known; /* whether the stacks of this interpreter can be read */

    long interpreter_threads;
    long thread_next;
    long thread_interpreter;
    long thread_identity;
    long thread_native_id; /* GPUPROF_NO_FIELD before 3.11 */
    long thread_frame;     /* of 3.11 and 3.12: of the structure that has the frame at `c_frame_current` */
    long c_frame_current;
    long thread_chunk;     /* the piece of memory that frames are taken from */
    long thread_chunk_top; /* where the next frame begins */
    long chunk_size;
    size_t thread_bytes;

    long frame_code; /* from 3.14 on, the lowest bits of the address are flags */
    long frame_previous;
    long frame_instruction; /* an address from 3.11 on, the number of an instruction before */
    long frame_owner;
    int first_owner_without_code; /* frames of this owner and of higher ones are the interpreter's or of C */
    size_t frame_bytes;

    long code_first_line;
    long code_path;
    long code_name;
    long code_table; /* of the positions of instructions */
    long code_instructions;
    size_t code_bytes;
} gpuprof_interpreter_layout;

extern const gpuprof_interpreter_layout gpuprof_layout;

#ifdef __cplusplus
}
#endif
