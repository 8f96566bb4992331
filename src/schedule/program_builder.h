// ProgramBuilder: the helper with which algorithm files write a rank's program.
#pragma once
#include <algorithm>
#include <utility>

#include "schedule/program.h"
#include "schedule/row_map.h"

namespace longnet {

// Gradients in a slot, and the last op that wrote them.
struct Gradients {
  SlotView rows;
  OpId last = -1;
};

// Slots of a backward pass with the same queries, and the gradients of their keys.
struct BackwardSlots {
  SlotView q, output, grad_out, statistics, grad_q, grad_kv;
};

class ProgramBuilder {
 public:
  // Starts with the slots that every program of the pass has.
  ProgramBuilder(const ShardedProblem& sharded, Rank rank, Pass pass = Pass::kForward)
      : sharded_(sharded), rank_(rank) {
    program_.pass = pass;
    add_slot(TensorKind::kQuery, SlotTag::kQuery, own());
    add_slot(TensorKind::kKeyValue, SlotTag::kKeyValue, own());
    add_slot(TensorKind::kPartial, SlotTag::kOutput, own());
    if (pass == Pass::kForward) return;
    add_slot(TensorKind::kGradOut, SlotTag::kGradOut, own());
    add_slot(TensorKind::kStatistics, SlotTag::kStatistics, own());
    add_slot(TensorKind::kGradQuery, SlotTag::kGradQuery, own());
    add_slot(TensorKind::kGradKeyValue, SlotTag::kGradKeyValue, own());
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
  SlotView grad_kv() const { return {kGradKvSlot, own()}; }
  BackwardSlots backward_rows() const {
    const auto own_of = [&](int slot) { return SlotView{slot, own()}; };
    return {
        q(),      output(), own_of(kGradOutSlot), own_of(kStatisticsSlot), own_of(kGradQuerySlot),
        grad_kv()};
  }

  int add_slot(TensorKind kind, SlotTag tag, const Slice& largest) {
    return add_slot(kind, tag, view_bytes(sharded_, kind, {.rows = largest}));
  }
  int add_slot(TensorKind kind, SlotTag tag, int64_t bytes) {
    program_.slots.push_back({kind, tag, bytes});
    return int(program_.slots.size()) - 1;
  }
  // A new slot laid out for `rows`.
  SlotView add_view(TensorKind kind, SlotTag tag, const Slice& rows) {
    return {add_slot(kind, tag, rows), rows};
  }
  // A new slot laid out for `rows`, with the contents that the forward pass leaves in its slot
  // `forward`.
  SlotView keep(int forward, TensorKind kind, SlotTag tag, const Slice& rows) {
    program_.kept.push_back({forward, add_view(kind, tag, rows)});
    return program_.kept.back().view;
  }
  void grow_slot(int slot, int64_t bytes) {
    int64_t& capacity = program_.slots.at(size_t(slot)).bytes;
    capacity = std::max(capacity, bytes);
  }

  // Dependencies of -1 mean "none" and are left out.
  OpId add(Action what, std::vector<OpId> after = {}) {
    std::erase(after, -1);
    return program_.add(std::move(what), std::move(after));
  }

  // Adds a sum of other ranks, complete after `ready`.
  OpId merge(const SlotView& sum, OpId ready, Gradients& into) {
    return into.last = add(Merge{sum, into.rows}, {ready, into.last});
  }

  // Exact attention of all own queries, of the heads of the keys.
  Attend attend_of(const SlotView& keys, const SlotView& into = {}) const {
    return {0, sharded_.all_tokens(), keys.rows.heads, q(), keys, into};
  }

  // Bytes of the largest slice among slice_of(0 .. count - 1): of K and V, or of another tensor.
  template <class SliceOf>
  int64_t largest_bytes(int count, const SliceOf& slice_of,
                        TensorKind kind = TensorKind::kKeyValue) const {
    // Only in a zigzag layout can a slice be larger than the first.
    const int differing = sharded_.layout.kind() == LayoutKind::kZigzag ? count : 1;
    int64_t bytes = 0;
    for (int i = 0; i < differing; ++i)
      bytes = std::max(bytes, view_bytes(sharded_, kind, {.rows = slice_of(i)}));
    return bytes;
  }

  // True unless the causal mask hides every key of `keys` from `queries`, or there are none.
  bool sees(const RankGroup& queries, const RankGroup& keys) const {
    const TokenInterval q = span_of(queries), k = span_of(keys);
    return !q.empty() && !k.empty() && (!sharded_.problem.causal || k.begin < q.end);
  }
  // sees() for the rank's own queries.
  bool sees(const RankGroup& keys) const { return sees({.first = rank_}, keys); }

  RankProgram take() { return std::move(program_); }

 private:
  // Returns the interval from the first token of some ranks to their last one.
  TokenInterval span_of(const RankGroup& ranks) const {
    TokenInterval span{sharded_.problem.seq_len, 0};
    for (int i = 0; i < ranks.count; ++i)
      if (const TokenRanges shard = sharded_.layout.shard(ranks[i]); !shard.empty())
        span = {std::min(span.begin, shard.first()), std::max(span.end, shard.last() + 1)};
    return span;
  }

  const ShardedProblem& sharded_;
  Rank rank_;
  RankProgram program_;
};

// The backward passes of attends, which add to one dQ and to gradients of K and V, one after the
// other: a sum in fp32 depends on its order.
class GradientSum {
 public:
  explicit GradientSum(ProgramBuilder& build) : GradientSum(build, build.backward_rows()) {}
  // The sum of gradients of these rows, whose dO is there after `ready`.
  GradientSum(ProgramBuilder& build, const BackwardSlots& rows, OpId ready = -1)
      : build_(build), rows_(rows), own_keys_{rows.grad_kv}, grad_out_ready_(ready) {}

  // Adds the gradients of `attend`, whose target they have no use for. Before the first come the
  // statistics of the rows, and dQ, dK and dV of 0: messages posted so far need not wait.
  OpId add(const Attend& attend, Gradients& into, OpId ready = -1) {
    if (ready_.empty()) begin(rows_.output, rows_.output, grad_out_ready_);
    std::vector<OpId> after = ready_;
    after.insert(after.end(), {ready, into.last});
    into.last =
        build_.add(AttendBackward{attend.branch, attend.queries, attend.heads, rows_.q, attend.kv,
                                  rows_.grad_out, rows_.statistics, rows_.grad_q, into.rows},
                   std::move(after));
    ready_ = {into.last};
    return into.last;
  }
  // Makes the delta of the next attends that of `alone`, complete after `ready`, instead of the
  // output's, and their L that of `lse`. Returns the op that reads `alone`.
  OpId use_statistics_of(const SlotView& alone, const SlotView& lse, OpId ready) {
    if (ready_.empty()) {
      begin(alone, lse, ready);
      return ready_[0];
    }
    ready_.push_back(ready);
    const OpId delta = build_.add(Delta{alone, lse, rows_.grad_out, rows_.statistics}, ready_);
    ready_ = {delta};
    return delta;
  }
  // dK and dV of the own keys.
  Gradients& own_keys() { return own_keys_; }
  // Ops that complete dQ.
  const std::vector<OpId>& queries_done() const { return ready_; }
  // False when the causal mask hides every key of `keys`.
  bool sees(const RankGroup& keys) const { return build_.sees(rows_.q.rows.owners, keys); }

 private:
  void begin(const SlotView& output, const SlotView& lse, OpId ready) {
    const OpId delta = build_.add(Delta{output, lse, rows_.grad_out, rows_.statistics}, {ready});
    ready_ = {delta, build_.add(Reset{rows_.grad_q})};
    own_keys_.last = build_.add(Reset{own_keys_.rows});
  }

  ProgramBuilder& build_;
  BackwardSlots rows_;
  Gradients own_keys_;
  OpId grad_out_ready_;
  std::vector<OpId> ready_;  // ops that the next attend must wait for
};

}  // namespace longnet
