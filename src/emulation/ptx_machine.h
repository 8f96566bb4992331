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
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longnet::ptx {
struct Rule;
}

namespace longnet {

// ---- PTX text as a list of decoded instructions: as much of the language as nvcc 13 writes for
// this suite's kernels. Source: NVIDIA, Parallel Thread Execution ISA, version 9.0. ----

// ".b32" and its like are those of numbers without a sign.
struct PtxType {
  char kind = 0;  // u, s or f; p: a predicate, 0: none
  int bytes = 4;  // in memory
  bool operator==(const PtxType&) const = default;
};

enum class PtxSpace : uint8_t { kGeneric, kGlobal, kShared, kParam };

// A row of a warp's registers: 32 values of 4 or 8 bytes, or the 32 bits of a predicate.
struct PtxRow {
  int32_t at = -1;    // byte of the warp's registers; -1: nothing ("_")
  uint8_t bytes = 0;  // per lane; 0: a predicate
};

struct PtxOperand {
  PtxRow row{};
  int64_t offset = 0;               // in an address [row + offset]
  bool negated = false;             // the predicate is negated
  std::vector<PtxOperand> parts{};  // parts of {a, b, ...}, coordinates of a bulk copy
};

struct PtxInstruction {
  std::string op{};                  // "setp.lt.s32"
  std::vector<std::string> words{};  // words of op: "setp", "lt", "s32"
  PtxType type, from;                // the type word; of cvt the result's, then the operand's
  PtxSpace space = PtxSpace::kGeneric;
  int vector = 1;  // v2, v4
  PtxRow guard{};
  bool guard_negated = false;
  std::vector<PtxOperand> operands{};
  PtxRow second{};      // the predicate of a shuffle (d|p)
  int32_t target = -1;  // index of a branch's target
  int line = 0;
  const ptx::Rule* rule = nullptr;  // how to execute it

  bool has(std::string_view word) const { return std::ranges::find(words, word) != words.end(); }
};

// A value that is the same in all lanes of a warp, or known before the warp starts.
struct PtxConstant {
  enum class Kind { kValue, kTidX, kCtaidX, kNctaidX, kParam, kDynamicShared } kind;
  uint64_t value = 0;  // the value, or a byte of the parameters
  PtxRow row{};
};

struct PtxParameter {
  int64_t at = 0, bytes = 0;
};

struct PtxKernel {
  std::string name{};
  std::vector<PtxParameter> parameters{};
  std::vector<PtxInstruction> instructions{};
  std::vector<PtxConstant> constants{};
  int64_t register_bytes = 0;  // per warp
  int64_t parameter_bytes = 0;
  int64_t shared_bytes = 0;  // static; dynamic shared memory begins behind it
  int64_t dynamic_alignment = 1;
  int threads = 0;  // .maxntid
};

// The kernels of a text by name, without rules and with them. Throws Error for what is not known
// here, with its line.
std::map<std::string, PtxKernel> parse_ptx(std::string_view text);
std::map<std::string, PtxKernel> load_ptx(std::string_view text);

// ---- launches ----

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

// Arguments behind each other as the kernel declares them, from a list of their addresses as
// cudaLaunchKernel takes it. Aligned as the device does it.
using PtxParameters = std::vector<std::max_align_t>;
PtxParameters gather_parameters(const PtxKernel& kernel, void* const* arguments);

void launch_ptx(const PtxKernel& kernel, const PtxLaunch& launch, const PtxParameters& parameters);

}  // namespace longnet
