// Executes PTX on the CPU: blocks one after the other, their warps in turns, lanes in step until
// they branch apart. Addresses are the host's, so that sanitizers see what a kernel touches.
//
//   const auto kernels = load_ptx(text);
//   launch_ptx(kernels.at("k"), {.grid = 4, .block = 128, .shared_bytes = 4096}, parameters);
//
// The manual leaves open when asynchronous work is done (cp.async, bulk copies, wgmma): it is done
// as early or as late as it may be, by PtxOrder. Shared memory starts as NaN. A launch throws for a
// deadlock, a trap, an access outside shared memory and every buffer, asynchronous work that
// nothing waits for, a race between warps, and a missing fence that wgmma, TMA or a tensor map
// needs.
//
// Not seen here: races within a warp and in global memory, register budgets (setmaxnreg), whether
// all four warps of a group take part in a wgmma, and how fast anything is.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/ptx_program.h"

namespace longnet {

struct PtxOrder {
  bool copies_land_late = false, products_late = false, warps_backwards = false;
};

struct PtxLaunch {
  unsigned grid = 1, block = 32;
  int64_t shared_bytes = 0;
  PtxOrder order{};
  // The buffer around an address, its first byte and the one behind its last: accesses elsewhere
  // throw. Null: any address will do.
  std::pair<const std::byte*, const std::byte*> (*buffer)(const void*) = nullptr;
};

// Contents of a 128-byte tensor map on this machine: the arguments of cuTensorMapEncodeTiled, for
// elements of 16 bits and a swizzle of 128 bytes.
struct PtxTensorMap {
  static constexpr int kMostDims = 5;
  uint64_t address = 0;
  uint32_t size[kMostDims] = {};
  uint64_t stride[kMostDims - 1] = {};  // bytes
  uint16_t box[kMostDims] = {};
  uint16_t valid = 0;
  static constexpr uint16_t kValid = 0x7A5A;
};
static_assert(sizeof(PtxTensorMap) <= 128);

// The kernels of a text by name. Throws Error for what is not known here, with its line.
std::map<std::string, PtxKernel> load_ptx(std::string_view text);

// Arguments behind each other as the kernel declares them, from a list of their addresses as
// cudaLaunchKernel takes it. Aligned as the device does it.
using PtxParameters = std::vector<std::max_align_t>;
PtxParameters gather_parameters(const PtxKernel& kernel, void* const* arguments);

void launch_ptx(const PtxKernel& kernel, const PtxLaunch& launch, const PtxParameters& parameters);

}  // namespace longnet
