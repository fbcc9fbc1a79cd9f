// SPDX-License-Identifier: Apache-2.0
// What measures a GPU's ceilings. Compiled by NVRTC on the user's machine for the GPU at hand, and without
// any header, so that nothing but the library itself is needed. All kernels take the same five arguments:
// three arrays, how many pieces of 16 bytes each holds, and how often the work is done.

#define SIGNATURE                                                                   \
    (unsigned long long first, unsigned long long second, unsigned long long third, \
     unsigned long long pieces, unsigned rounds)
#define KERNEL extern "C" __global__ void __launch_bounds__(256)

// --- memory ---------------------------------------------------------------------------------------
// Volatile, so that no load is left out, drawn together or taken out of a loop; past the first cache, since
// the measured memory comes after it.

struct Piece {
    float x, y, z, w;
};

static __device__ __forceinline__ Piece load(unsigned long long array, unsigned long long index) {
    Piece piece;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(piece.x), "=f"(piece.y), "=f"(piece.z), "=f"(piece.w)
                 : "l"(array + index * sizeof(Piece)));
    return piece;
}

static __device__ __forceinline__ void store(unsigned long long array, unsigned long long index,
                                             Piece piece) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(array + index * sizeof(Piece)),
                 "f"(piece.x), "f"(piece.y), "f"(piece.z), "f"(piece.w));
}

// So many loads are under way at once in each thread, which hides their latency.
constexpr unsigned loads_together = 4;

// Calls `work` with index after index: adjacent threads take adjacent pieces.
template <typename Work>
static __device__ __forceinline__ void for_each_group(unsigned long long pieces, unsigned rounds, Work work) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    const unsigned long long own = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (unsigned round = 0; round < rounds; ++round)
#pragma unroll 1
        for (unsigned long long at = own; at < pieces; at += step * loads_together) work(at, step);
}

KERNEL gpuprof_read SIGNATURE {
    float sum = 0;
    for_each_group(pieces, rounds, [&](unsigned long long at, unsigned long long step) {
        Piece loaded[loads_together];
#pragma unroll
        for (unsigned i = 0; i < loads_together; ++i)
            loaded[i] = at + i * step < pieces ? load(first, at + i * step) : Piece{};
#pragma unroll
        for (unsigned i = 0; i < loads_together; ++i)
            sum += (loaded[i].x + loaded[i].y) + (loaded[i].z + loaded[i].w);
    });
    // Never so, which no compiler knows.
    if (sum == -1) store(second, 0, Piece{sum, sum, sum, sum});
}

KERNEL gpuprof_copy SIGNATURE {
    for_each_group(pieces, rounds, [&](unsigned long long at, unsigned long long step) {
        Piece loaded[loads_together];
#pragma unroll
        for (unsigned i = 0; i < loads_together; ++i)
            if (at + i * step < pieces) loaded[i] = load(first, at + i * step);
#pragma unroll
        for (unsigned i = 0; i < loads_together; ++i)
            if (at + i * step < pieces) store(second, at + i * step, loaded[i]);
    });
}

KERNEL gpuprof_triad SIGNATURE {
    for_each_group(pieces, rounds, [&](unsigned long long at, unsigned long long step) {
        Piece a[loads_together], b[loads_together];
#pragma unroll
        for (unsigned i = 0; i < loads_together; ++i)
            if (at + i * step < pieces) {
                a[i] = load(first, at + i * step);
                b[i] = load(second, at + i * step);
            }
#pragma unroll
        for (unsigned i = 0; i < loads_together; ++i)
            if (at + i * step < pieces)
                store(third, at + i * step,
                      Piece{a[i].x + 0.5f * b[i].x, a[i].y + 0.5f * b[i].y, a[i].z + 0.5f * b[i].z,
                            a[i].w + 0.5f * b[i].w});
    });
}

// --- arithmetic -----------------------------------------------------------------------------------
// x = x a + b with a = 1/2 and b = 1 converges to 2, far from overflow and from denormal numbers. No compiler
// knows that `pieces` is 0, so nothing is calculated ahead.

constexpr unsigned chains = 8;
constexpr unsigned steps = 16;

#define FMA_KERNEL(name, type, number, multiply_add, as_float)                                           \
    KERNEL name SIGNATURE {                                                                              \
        const type a = number(0.5f + static_cast<float>(pieces)),                                        \
                   b = number(1.0f + static_cast<float>(pieces));                                        \
        type x[chains];                                                                                  \
        _Pragma("unroll") for (unsigned i = 0; i < chains; ++i) x[i] =                                   \
            number(static_cast<float>(threadIdx.x % 2 + i % 2));                                         \
        _Pragma("unroll 1") for (unsigned round = 0; round < rounds; ++round)                            \
            _Pragma("unroll") for (unsigned step = 0; step < steps; ++step)                              \
                _Pragma("unroll") for (unsigned i = 0; i < chains; ++i) x[i] = multiply_add(x[i], a, b); \
        float sum = 0;                                                                                   \
        _Pragma("unroll") for (unsigned i = 0; i < chains; ++i) sum += as_float(x[i]);                   \
        if (sum == -1) store(first, 0, Piece{sum, sum, sum, sum});                                       \
    }

static __device__ __forceinline__ double to_double(float value) {
    return value;
}
static __device__ __forceinline__ float to_float(double value) {
    return static_cast<float>(value);
}
static __device__ __forceinline__ float same(float value) {
    return value;
}

FMA_KERNEL(gpuprof_fma_fp64, double, to_double, __fma_rn, to_float)
FMA_KERNEL(gpuprof_fma_fp32, float, same, __fmaf_rn, same)

// Two halves in one register. They differ: two equal ones are read from one register, which only one of the
// two pipelines for halves can do, so that the other one would be idle.
static __device__ __forceinline__ unsigned two_halves(float value) {
    unsigned both;
    asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(both)
        : "f"(value), "f"(0.5f * value));
    return both;
}
static __device__ __forceinline__ float of_halves(unsigned both) {
    float value;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(both));
    return value;
}
static __device__ __forceinline__ unsigned fma_halves(unsigned x, unsigned a, unsigned b) {
    unsigned result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(a), "r"(b));
    return result;
}
FMA_KERNEL(gpuprof_fma_fp16, unsigned, two_halves, fma_halves, of_halves)

#if __CUDA_ARCH__ >= 800
// A bfloat16 is the upper half of a float.
static __device__ __forceinline__ unsigned two_bfloats(float value) {
    const unsigned upper = __float_as_uint(value) >> 16;
    return upper << 16 | upper;
}
static __device__ __forceinline__ float of_bfloats(unsigned both) {
    return __uint_as_float(both & 0xffff0000u);
}
static __device__ __forceinline__ unsigned fma_bfloats(unsigned x, unsigned a, unsigned b) {
    unsigned result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(a), "r"(b));
    return result;
}
FMA_KERNEL(gpuprof_fma_bf16, unsigned, two_bfloats, fma_bfloats, of_bfloats)
#endif

// --- launching ------------------------------------------------------------------------------------

KERNEL gpuprof_empty SIGNATURE {}

// Keeps the GPU for about so many thousands of clock cycles, so that what is launched meanwhile waits in
// line.
KERNEL gpuprof_busy SIGNATURE {
    for (unsigned round = 0; round < rounds; ++round) {
        const long long begin = clock64();
        while (clock64() - begin < 1000) {
        }
    }
}
