// Small helper with which algorithm files write programs.
#pragma once
#include <algorithm>
#include <utility>

#include "schedule/program.h"
#include "schedule/row_map.h"

namespace longnet {

class ProgramBuilder {
 public:
  // Starts with the three slots that every program has.
  ProgramBuilder(const ShardedProblem& sharded, Rank rank) : sharded_(sharded), rank_(rank) {
    add_slot(TensorKind::kQuery, SlotTag::kQuery, own());
    add_slot(TensorKind::kKeyValue, SlotTag::kKeyValue, own());
    add_slot(TensorKind::kPartial, SlotTag::kOutput, own());
  }

  Slice own() const { return every_row_of(rank_); }
  Slice every_row_of(Rank r) const {
    return {kEveryRow, {r, 1, 1}, sharded_.all_tokens(), sharded_.all_heads()};
  }

  Held q() const { return {kQuerySlot, own()}; }
  Held kv() const { return {kKvSlot, own()}; }
  Held output() const { return {kOutputSlot, own()}; }

  int add_slot(TensorKind kind, SlotTag tag, const Slice& largest) {
    return add_slot(kind, tag, slice_bytes(sharded_, kind, largest));
  }
  int add_slot(TensorKind kind, SlotTag tag, int64_t bytes) {
    program_.slots.push_back({kind, tag, bytes});
    return int(program_.slots.size()) - 1;
  }

  void grow_slot(int slot, int64_t bytes) {
    int64_t& held = program_.slots.at(size_t(slot)).bytes;
    held = std::max(held, bytes);
  }

  // Dependencies of -1 mean "none" and are left out.
  OpId add(Action what, std::vector<OpId> after = {}) {
    std::erase(after, -1);
    program_.ops.push_back({std::move(what), std::move(after)});
    return OpId(program_.ops.size()) - 1;
  }

  RankProgram take() { return std::move(program_); }

 private:
  const ShardedProblem& sharded_;
  Rank rank_;
  RankProgram program_;
};

}  // namespace longnet
