// Instructions of one warp that both attention kernels use. PTX ISA 8.x: mma.sync, ldmatrix and
// cp.async need sm_80. Element: __nv_bfloat16 or __half.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace longnet {

__device__ __forceinline__ int lane_of_thread() { return int(threadIdx.x & 31); }

// Four 8 x 8 matrices of 16 bits; `address` in shared memory: lane 8 i + r gives row r of matrix i.
__device__ __forceinline__ void ldmatrix(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

// A multiplication of matrices of Element: the instruction before and behind the types of A and B,
// and its operands.
#define LONGNET_MULTIPLY(before, behind, ...)             \
  if constexpr (std::is_same_v<Element, __half>)          \
    asm volatile(before ".f16.f16" behind : __VA_ARGS__); \
  else                                                    \
    asm volatile(before ".bf16.bf16" behind : __VA_ARGS__)

// C (16 x 8) += A (16 x 16) B (16 x 8).
template <class Element>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  LONGNET_MULTIPLY("mma.sync.aligned.m16n8k16.row.col.f32",
                   ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};", "+f"(c[0]),
                   "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes into shared memory, asynchronously; zeros where `valid` is false.
__device__ __forceinline__ void copy16(uint32_t into, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(into),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Over the four lanes of a quad, which share a row of accumulators.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

__device__ __forceinline__ float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers rounded to 16 bits, in one word.
template <class Element>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<Element, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ void store_pair(float* at, float x, float y) {
  if ((reinterpret_cast<uintptr_t>(at) & 7) == 0) {
    *reinterpret_cast<float2*>(at) = make_float2(x, y);
  } else {  // pieces of a partial lie behind each other, LSEs between them
    at[0] = x;
    at[1] = y;
  }
}

}  // namespace longnet
