// PTX text as a list of decoded instructions: as much of the language as nvcc 13 writes for this
// suite's kernels. What is not known is refused when it is read, with its line.
//
//   const auto kernels = parse_ptx(text);    // by name
//
// Source: NVIDIA, Parallel Thread Execution ISA, version 9.0.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace longnet::ptx {
struct Rule;
}

namespace longnet {

// ".b32" and its like are those of numbers without a sign.
enum class PtxType : uint8_t {
  kNone,
  kPred,
  kU8,
  kS8,
  kU16,
  kS16,
  kF16,
  kU32,
  kS32,
  kF32,
  kU64,
  kS64,
  kF64
};
int bytes_of(PtxType type);  // in memory

enum class PtxSpace : uint8_t { kGeneric, kGlobal, kShared, kParam, kLocal };

// A row of a warp's registers: 32 values of 4 or 8 bytes, or the 32 bits of a predicate.
struct PtxRow {
  int32_t at = -1;    // byte of the warp's registers; -1: nothing ("_")
  uint8_t bytes = 0;  // of a lane; 0: a predicate
};

struct PtxOperand {
  PtxRow row{};
  int64_t offset = 0;               // of an address [row + offset]
  bool negated = false;             // of a predicate
  std::vector<PtxOperand> parts{};  // of {a, b, ...} and of the coordinates of a bulk copy
};

struct PtxInstruction {
  std::string op{};                                      // "setp.lt.s32"
  std::vector<std::string> words{};                      // of it: "setp", "lt", "s32"
  PtxType type = PtxType::kNone, from = PtxType::kNone;  // the last of them; the other one of cvt
  PtxSpace space = PtxSpace::kGeneric;
  int vector = 1;  // v2, v4
  PtxRow guard{};
  bool guard_negated = false;
  std::vector<PtxOperand> operands{};
  PtxRow second{};      // the predicate of a shuffle (d|p)
  int32_t target = -1;  // of a branch
  int line = 0;
  const ptx::Rule* rule = nullptr;  // for whoever runs it

  bool has(std::string_view word) const;
};

// A value that is the same in all lanes of a warp, or known before the warp starts.
struct PtxConstant {
  enum class Kind { kValue, kTidX, kCtaidX, kNtidX, kNctaidX, kParam, kLocal, kDynamicShared } kind;
  uint64_t value = 0;  // or the byte of the parameters or of local memory
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
  int64_t register_bytes = 0;  // of a warp
  int64_t parameter_bytes = 0, local_bytes = 0;
  int64_t shared_bytes = 0;  // static; dynamic shared memory begins behind it
  int64_t dynamic_alignment = 1;
  int threads = 0;  // .maxntid
};

std::map<std::string, PtxKernel> parse_ptx(std::string_view text);

}  // namespace longnet
