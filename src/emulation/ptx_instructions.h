// Instructions by name, and the functions that execute them.
#pragma once
#include <span>
#include <string_view>

#include "emulation/ptx_warp.h"

namespace longnet::ptx {

class Block;
// Executes an instruction for the lanes of `mask`. Throws Error for whatever is wrong with it.
using Execute = void (*)(Block&, Warp&, const PtxInstruction&, uint32_t mask);

struct Rule {
  enum class Kind { kEachLane, kWholeWarp, kProduct, kBranch, kReturn };
  std::string_view name;  // "mul.wide": of instructions that begin with these words; longest first
  Execute execute = nullptr;  // null: refused
  Kind kind = Kind::kEachLane;
  bool whole_warp() const { return kind == Kind::kWholeWarp || kind == Kind::kProduct; }
};

std::span<const Rule> arithmetic_rules();

// Throws Error with the line where the instruction, or a modifier of it, is not known here.
const Rule& rule_of(const PtxInstruction& in);

void set_predicate(Warp& warp, PtxRow row, uint32_t mask, uint32_t value);

}  // namespace longnet::ptx
