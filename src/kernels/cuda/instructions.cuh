// Instructions by name: of a warp (sm_80 on: mma.sync, ldmatrix, cp.async) and of a warpgroup
// (sm_90a: wgmma, its fences and its matrix descriptors). Matrices of 16 bits are bf16.
//
// PTX ISA 8.x; wgmma: 9.7.15 (asynchronous warpgroup level matrix instructions).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

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

// C (16 x 8) += A (16 x 16) B (16 x 8).
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
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

// Floats in shared memory.
__device__ __forceinline__ float4 load_shared(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_shared(uint32_t at, float2 x) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x.x), "f"(x.y) : "memory");
}

template <class T>
__device__ __forceinline__ T other_lane(T x, int offset) {
  return __shfl_xor_sync(0xFFFFFFFFu, x, offset);
}
__device__ __forceinline__ float2 other_lane(float2 x, int offset) {
  return {other_lane(x.x, offset), other_lane(x.y, offset)};
}
__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
// Folds x over groups of kLanes neighbouring lanes (a power of two), in one order; all lanes get
// the result. All 32 lanes call it.
template <int kLanes = 32, class T, class Fold>
__device__ __forceinline__ T over_lanes(T x, Fold fold) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = fold(x, other_lane(x, offset));
  return x;
}
template <int kLanes = 32, class T>
__device__ __forceinline__ T lane_sum(T x) {
  return over_lanes<kLanes>(x, [](T a, T b) { return a + b; });
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

// Two numbers rounded to bf16, in one word.
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ float2 unpack_pair(uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
}

// Zero where not wanted. Without branches, as load_pair().
__device__ __forceinline__ uint32_t load_word(const float* at, bool wanted) {
  uint32_t word = 0;
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u32 %0, [%1];\n}"
               : "+r"(word)
               : "l"(__cvta_generic_to_global(at)), "r"(int(wanted))
               : "memory");
  return word;
}

// Two neighbouring floats of a row, by one access where the row is `aligned`: pieces of a partial
// lie behind each other, LSEs between them. Without branches, so that many loads are in flight.
__device__ __forceinline__ bool aligned_to_pairs(const float* row) {
  return (reinterpret_cast<uintptr_t>(row) & 7) == 0;
}
__device__ __forceinline__ float2 load_pair(const float* at, bool aligned, bool wanted) {
  float2 pair = make_float2(0.0f, 0.0f);
  asm volatile(
      "{\n .reg .pred p;\n .reg .pred q;\n setp.ne.b32 p, %3, 0;\n setp.ne.b32 q, %4, 0;\n"
      " @p ld.global.v2.f32 {%0, %1}, [%2];\n @q ld.global.f32 %0, [%2];\n"
      " @q ld.global.f32 %1, [%2+4];\n}"
      : "+f"(pair.x), "+f"(pair.y)
      : "l"(__cvta_generic_to_global(at)), "r"(int(wanted && aligned)), "r"(int(wanted && !aligned))
      : "memory");
  return pair;
}
// Stores what is wanted. Without branches, as well.
__device__ __forceinline__ void store_word(float* at, uint32_t word, bool wanted) {
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p st.global.u32 [%0], %1;\n}" ::"l"(
                   __cvta_generic_to_global(at)),
               "r"(word), "r"(int(wanted))
               : "memory");
}
__device__ __forceinline__ void store_pair(float* at, float x, float y, bool aligned, bool wanted) {
  asm volatile(
      "{\n .reg .pred p;\n .reg .pred q;\n setp.ne.b32 p, %3, 0;\n setp.ne.b32 q, %4, 0;\n"
      " @p st.global.v2.f32 [%0], {%1, %2};\n @q st.global.f32 [%0], %1;\n"
      " @q st.global.f32 [%0+4], %2;\n}" ::"l"(__cvta_generic_to_global(at)),
      "f"(x), "f"(y), "r"(int(wanted && aligned)), "r"(int(wanted && !aligned))
      : "memory");
}

// ---- warpgroups: accumulators are groups of 8 columns, in the layout of mma.m16n8k16 ----

// The lower half of the matrix descriptor of a tile of 128-byte swizzled rows that starts at byte
// `at` of shared memory; adding bytes / 16 moves it. `leading`: bytes between slabs of 64 columns,
// where the operand is wider than one and its columns lie along the rows (V); ignored otherwise.
__device__ __forceinline__ uint32_t descriptor_address(uint32_t at, uint32_t leading) {
  return (at >> 4) | (leading >> 4) << 16;
}
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
  constexpr uint64_t kEightRows = 8 * 128, kSwizzle128 = 1;
  return kSwizzle128 << 62 | (kEightRows >> 4) << 32 | address;
}

// Operand lists of wgmma: accumulators of 8 columns each.
#define LONGNET_ACC(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define LONGNET_ACC4(n) LONGNET_ACC(n), LONGNET_ACC(n + 1), LONGNET_ACC(n + 2), LONGNET_ACC(n + 3)
#define LONGNET_ACC6 LONGNET_ACC4(0), LONGNET_ACC(4), LONGNET_ACC(5)
#define LONGNET_ACC8 LONGNET_ACC4(0), LONGNET_ACC4(4)
#define LONGNET_ACC10 LONGNET_ACC8, LONGNET_ACC(8), LONGNET_ACC(9)
#define LONGNET_ACC12 LONGNET_ACC8, LONGNET_ACC4(8)
#define LONGNET_ACC16 LONGNET_ACC8, LONGNET_ACC4(8), LONGNET_ACC4(12)
#define LONGNET_ACC20 LONGNET_ACC16, LONGNET_ACC4(16)
#define LONGNET_D24 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define LONGNET_D32                                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define LONGNET_D64                                                                               \
  LONGNET_D32                                                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define LONGNET_D40 LONGNET_D32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LONGNET_D48 LONGNET_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define LONGNET_D80 LONGNET_D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"

// The compiler may not move what touches these registers across this point.
template <int n>
__device__ __forceinline__ void keep_in_place(float (&c)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : LONGNET_ACC(i)::"memory");
}
template <int n>
__device__ __forceinline__ void wgmma_fence(float (&c)[n][4]) {
  keep_in_place(c);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Blocks until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// C (64 x n) = A (64 x 16) B (16 x n) (+ C), both in shared memory.
#define LONGNET_MULTIPLY_SHARED(n, list, a_place, b_place, add_place, ...)                    \
  __device__ __forceinline__ void wgmma_multiply(float(&c)[n / 8][4], uint64_t a, uint64_t b, \
                                                 bool add) {                                  \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " add_place                              \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list      \
                 "}, " a_place ", " b_place ", p, 1, 1, 0, 0;\n}"                             \
                 : __VA_ARGS__                                                                \
                 : "l"(a), "l"(b), "r"(int(add)));                                            \
  }
LONGNET_MULTIPLY_SHARED(48, LONGNET_D24, "%24", "%25", "%26", LONGNET_ACC6)
LONGNET_MULTIPLY_SHARED(64, LONGNET_D32, "%32", "%33", "%34", LONGNET_ACC8)
LONGNET_MULTIPLY_SHARED(80, LONGNET_D40, "%40", "%41", "%42", LONGNET_ACC10)
LONGNET_MULTIPLY_SHARED(96, LONGNET_D48, "%48", "%49", "%50", LONGNET_ACC12)
LONGNET_MULTIPLY_SHARED(128, LONGNET_D64, "%64", "%65", "%66", LONGNET_ACC16)
LONGNET_MULTIPLY_SHARED(160, LONGNET_D80, "%80", "%81", "%82", LONGNET_ACC20)

// C += A (registers) B, whose columns lie along the rows of shared memory.
__device__ __forceinline__ void wgmma_multiply_add(float (&c)[8][4], const uint32_t (&a)[4],
                                                   uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LONGNET_D32
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : LONGNET_ACC8
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_multiply_add(float (&c)[16][4], const uint32_t (&a)[4],
                                                   uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LONGNET_D64
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : LONGNET_ACC16
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef LONGNET_MULTIPLY_SHARED
#undef LONGNET_D80
#undef LONGNET_D64
#undef LONGNET_D48
#undef LONGNET_D40
#undef LONGNET_D32
#undef LONGNET_D24
#undef LONGNET_ACC20
#undef LONGNET_ACC16
#undef LONGNET_ACC12
#undef LONGNET_ACC10
#undef LONGNET_ACC8
#undef LONGNET_ACC6
#undef LONGNET_ACC4
#undef LONGNET_ACC

}  // namespace longnet
