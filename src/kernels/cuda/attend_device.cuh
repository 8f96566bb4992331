// The tile loop on a device: what a Warp and a Block of attend_tile.h are there.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/attend_tile.h"

namespace longnet {

// Element: __nv_bfloat16 or __half. PTX ISA 8.x: mma.sync, ldmatrix and cp.async need sm_80.
template <class Element>
struct DeviceWarp {
  template <class T>
  struct Reg {
    T value;
    __device__ __forceinline__ T& operator[](int) { return value; }
    __device__ __forceinline__ const T& operator[](int) const { return value; }
  };

  template <class F>
  __device__ __forceinline__ void lanes(F f) const {
    f(int(threadIdx.x & 31));
  }
  __device__ __forceinline__ void sync() const { __syncwarp(); }

  __device__ __forceinline__ void ldmatrix(Reg<uint32_t> (&out)[4], const Reg<int>& address) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0].value), "=r"(out[1].value), "=r"(out[2].value), "=r"(out[3].value)
                 : "r"(shared + uint32_t(address.value)));
  }
  __device__ __forceinline__ void ldmatrix_transposed(Reg<uint32_t> (&out)[4],
                                                      const Reg<int>& address) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0].value), "=r"(out[1].value), "=r"(out[2].value), "=r"(out[3].value)
                 : "r"(shared + uint32_t(address.value)));
  }
  __device__ __forceinline__ void mma(Reg<float> (&c)[4], const Reg<uint32_t> (&a)[4],
                                      const Reg<uint32_t>& b0, const Reg<uint32_t>& b1) const {
    if constexpr (std::is_same_v<Element, __half>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[0].value), "+f"(c[1].value), "+f"(c[2].value), "+f"(c[3].value)
          : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "r"(b0.value),
            "r"(b1.value));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[0].value), "+f"(c[1].value), "+f"(c[2].value), "+f"(c[3].value)
          : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "r"(b0.value),
            "r"(b1.value));
  }

  __device__ __forceinline__ void quad_max(Reg<float>& x) const {
    x.value = fmaxf(x.value, __shfl_xor_sync(0xFFFFFFFFu, x.value, 1));
    x.value = fmaxf(x.value, __shfl_xor_sync(0xFFFFFFFFu, x.value, 2));
  }
  __device__ __forceinline__ void quad_sum(Reg<float>& x) const {
    x.value += __shfl_xor_sync(0xFFFFFFFFu, x.value, 1);
    x.value += __shfl_xor_sync(0xFFFFFFFFu, x.value, 2);
  }
  static __device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ float log2(float x) { return log2f(x); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t word;
    if constexpr (std::is_same_v<Element, __half>)
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
  static __device__ __forceinline__ void store2(float* at, float x, float y) {
    if ((reinterpret_cast<uintptr_t>(at) & 7) == 0) {
      *reinterpret_cast<float2*>(at) = make_float2(x, y);
    } else {  // pieces of a partial lie behind each other, LSEs between them
      at[0] = x;
      at[1] = y;
    }
  }

  uint32_t shared = 0;
};

template <class Shape, class Element>
struct DeviceBlock {
  using Warp = DeviceWarp<Element>;

  template <class F>
  __device__ __forceinline__ void threads(F f) {
    f(int(threadIdx.x));
  }
  template <class F>
  __device__ __forceinline__ void warps(F f) {
    f(state, Warp{shared}, int(threadIdx.x >> 5));
  }
  __device__ __forceinline__ void copy16(int byte, const void* from, bool valid) {
    const int bytes = valid ? 16 : 0;  // the rest becomes zero
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared + uint32_t(byte)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  __device__ __forceinline__ void sync() { __syncthreads(); }

  uint32_t shared;
  WarpTile<Shape, Warp> state;
};

template <class Shape, class Element>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    attend_kernel(const __grid_constant__ TileInputs in) {
  extern __shared__ __align__(128) unsigned char memory[];
  DeviceBlock<Shape, Element> block;
  block.shared = uint32_t(__cvta_generic_to_shared(memory));
  const TileRef tile = in.tiles[blockIdx.x];  // in registers: copies clobber memory
  attend_tile<Shape>(block, in, tile);
}

}  // namespace longnet
