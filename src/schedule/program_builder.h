// ProgramBuilder: the helper with which algorithm files write a rank's program.
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
  Slice every_row_of(Rank r) const { return every_row_of({.first = r}, sharded_.all_heads()); }
  Slice every_row_of(const RankGroup& owners, HeadRange heads) const {
    return {kEveryRow, owners, sharded_.all_tokens(), heads};
  }

  bool is_empty(const Slice& rows) const {
    for (int i = 0; i < rows.owners.count; ++i)
      if (!owned_tokens(sharded_, rows.owners[i], rows.within).empty()) return false;
    return true;
  }

  SlotView q() const { return {kQuerySlot, own()}; }
  SlotView kv() const { return {kKvSlot, own()}; }
  SlotView output() const { return {kOutputSlot, own()}; }

  int add_slot(TensorKind kind, SlotTag tag, const Slice& largest) {
    return add_slot(kind, tag, slice_bytes(sharded_, kind, largest));
  }
  int add_slot(TensorKind kind, SlotTag tag, int64_t bytes) {
    program_.slots.push_back({kind, tag, bytes});
    return int(program_.slots.size()) - 1;
  }
  // A new slot laid out for `rows`.
  SlotView add_view(TensorKind kind, SlotTag tag, const Slice& rows) {
    return {add_slot(kind, tag, rows), rows};
  }
  void grow_slot(int slot, int64_t bytes) {
    int64_t& capacity = program_.slots.at(size_t(slot)).bytes;
    capacity = std::max(capacity, bytes);
  }

  // Dependencies of -1 mean "none" and are left out.
  OpId add(Action what, std::vector<OpId> after = {}) {
    std::erase(after, -1);
    program_.ops.push_back({std::move(what), std::move(after)});
    return OpId(program_.ops.size()) - 1;
  }

  // Exact attention of all own queries, all heads.
  Attend attend(const SlotView& keys, const SlotView& into = {}) const {
    return {0, sharded_.all_tokens(), sharded_.all_heads(), q(), keys, into};
  }

  // A rank whose shard no other exceeds.
  Rank largest_shard() const {
    const SequenceLayout& layout = sharded_.layout;
    Rank largest = 0;
    for (Rank r = 1; r < layout.world_size() && layout.kind() == LayoutKind::kZigzag; ++r)
      if (layout.shard(r).tokens() > layout.shard(largest).tokens()) largest = r;
    return largest;  // the first one, in the other layouts
  }

  // True unless the causal mask hides every key of `keys` from the queries, or there are none.
  bool visible(const TokenRanges& queries, const TokenRanges& keys) const {
    return !queries.empty() && !keys.empty() &&
           (!sharded_.problem.causal || keys.first() <= queries.last());
  }
  // The same for the own queries and the keys of `owner`.
  bool sees_shard_of(Rank owner) const {
    return visible(sharded_.layout.shard(rank_), sharded_.layout.shard(owner));
  }

  RankProgram take() { return std::move(program_); }

 private:
  const ShardedProblem& sharded_;
  Rank rank_;
  RankProgram program_;
};

}  // namespace longnet
