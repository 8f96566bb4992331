// A block's shared memory as a ring of stages, and the mbarriers behind it: one warpgroup loads,
// the others multiply (sm_90a).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/group_layout.h"

namespace longnet {

// A stage of the pipeline, and the parity of its mbarrier's phase.
template <int kStages>
struct PipelineState {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
  __device__ __forceinline__ int stage_before() const {
    return stage == 0 ? kStages - 1 : stage - 1;
  }
  __device__ __forceinline__ PipelineState before() const {
    return {stage_before(), stage == 0 ? parity ^ 1 : parity};
  }
};

// Shared memory of a block from byte `shared` on: tiles, and mbarriers behind them.
template <class Shape>
struct BlockMemory {
  uint32_t shared;

  __device__ __forceinline__ uint32_t at(int barrier) const {
    return shared + uint32_t(Shape::kBarrierOffset + 8 * barrier);
  }
  __device__ void init(int barrier, int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(barrier)), "r"(arrivals)
                 : "memory");
  }
  // Behind the last init().
  __device__ static void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ __forceinline__ void wait(int barrier, int parity) const {
    uint32_t done;
    do {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          " selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(at(barrier)), "r"(parity)
          : "memory");
    } while (done == 0);
  }
  // Arrives at a barrier by one lane of each warp, or by every thread.
  __device__ __forceinline__ void arrive(int barrier) const {
    if (threadIdx.x % 32 == 0) arrive_each(barrier);
  }
  __device__ __forceinline__ void arrive_each(int barrier) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory");
  }
  __device__ __forceinline__ void expect(int barrier, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)),
                 "r"(bytes)
                 : "memory");
  }
  // Asks for a box of a view, from element [dim][row] of a place on, by TMA: to byte `into`, and
  // its bytes to a barrier. `maps`: a tensor map per view.
  __device__ __forceinline__ void copy_box(const char* maps, const ViewPlace& from, int dim,
                                           int row, int into, int barrier) const {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared + uint32_t(into)),
        "l"(maps + int64_t{from.view} * 128), "r"(at(barrier)), "r"(dim), "r"(row), "r"(from.at[0]),
        "r"(from.at[1]), "r"(from.at[2])
        : "memory");
  }
  // The host wrote the map of a view: nothing older may be cached.
  __device__ __forceinline__ static void acquire_map(const char* maps, int view) {
    asm volatile(
        "fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(maps + int64_t{view} * 128)
        : "memory");
  }
};

}  // namespace longnet
