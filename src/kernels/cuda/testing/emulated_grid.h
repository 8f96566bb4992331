// For tests: the words of CUDA that rows_kernels.cuh uses, and a grid that runs its kernels on the
// CPU, a thread for each thread of a block, blocks one after the other.
//
//   run_grid(blocks, threads, [&] { merge_kernel<float4>(tasks, tiles, head_dim, false); });
#pragma once
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#define __global__ inline
#define __device__ inline
#define __shared__ static  // one block at a time
#define __launch_bounds__(threads)

namespace longnet {

struct EmulatedIndex {
  unsigned x = 0;
};
inline thread_local EmulatedIndex threadIdx, blockIdx, gridDim;

struct uint4 {
  uint32_t x, y, z, w;
};
struct ushort4 {
  uint16_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

// What the threads of a block barrier at.
struct EmulatedBlockState {
  struct Warp {
    explicit Warp(int lanes) : barrier(lanes) {}
    std::barrier<> barrier;
    unsigned char words[32][8] = {};
  };
  EmulatedBlockState(int threads) : all(threads) {
    for (int at = 0; at < threads; at += 32) warps.push_back(std::make_unique<Warp>(32));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<Warp>> warps;
};
inline EmulatedBlockState* emulated_block = nullptr;
inline std::mutex emulated_atomics;

// `threads` is a multiple of 32.
template <class F>
void run_grid(unsigned blocks, unsigned threads, F kernel) {
  for (unsigned block = 0; block < blocks; ++block) {
    EmulatedBlockState state{int(threads)};
    emulated_block = &state;
    std::vector<std::thread> pool;
    for (unsigned thread = 0; thread < threads; ++thread)
      pool.emplace_back([&, thread] {
        threadIdx.x = thread;
        blockIdx.x = block;
        gridDim.x = blocks;
        kernel();
      });
    for (std::thread& t : pool) t.join();
  }
}

inline void __syncthreads() { emulated_block->all.arrive_and_wait(); }

// PTX ISA, shfl.sync.down: lane l reads lane l + offset, its own value beyond the warp.
template <class T>
T __shfl_down_sync(unsigned, T value, int offset) {
  static_assert(sizeof(T) <= 8);
  auto& warp = *emulated_block->warps[threadIdx.x / 32];
  const unsigned lane = threadIdx.x % 32;
  std::memcpy(warp.words[lane], &value, sizeof value);
  warp.barrier.arrive_and_wait();
  const unsigned from = lane + unsigned(offset) < 32 ? lane + unsigned(offset) : lane;
  std::memcpy(&value, warp.words[from], sizeof value);
  warp.barrier.arrive_and_wait();
  return value;
}

inline void atomicAdd(unsigned long long* at, unsigned long long value) {
  const std::scoped_lock lock(emulated_atomics);
  *at += value;
}

using std::isnan;
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// fp16 as the machine's own compiler rounds it.
struct EmulatedHalf {
  _Float16 value;
};
inline EmulatedHalf __float2half_rn(float x) { return {_Float16(x)}; }
inline float __half2float(EmulatedHalf x) { return float(x.value); }
inline uint16_t __half_as_ushort(EmulatedHalf x) {
  uint16_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline EmulatedHalf __ushort_as_half(uint16_t bits) {
  EmulatedHalf x;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

}  // namespace longnet
