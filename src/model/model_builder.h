// ModelBuilder: a rank's program of a model, op by op.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "model/model_program.h"
#include "schedule/row_map.h"

namespace longnet {

// The slots of one layer's attention, in the order of its fixed slots (kQuerySlot to kGradKvSlot).
using AttentionSlots = std::vector<int>;

class ModelBuilder {
 public:
  ModelBuilder(const ShardedProblem& sharded, Rank rank, Pass pass)
      : sharded_(sharded), rank_(rank) {
    program_.scope = Scope::kModel;
    program_.pass = pass;
  }

  int add_slot(TensorKind kind, SlotTag tag, int64_t bytes) {
    program_.slots.push_back({kind, tag, bytes});
    return int(program_.slots.size()) - 1;
  }
  // A slot of values, in one part a rank, or of this rank alone.
  SlotView add_shared_values(SlotTag tag, int64_t count) {
    const RankGroup all{.count = sharded_.layout.world_size()};
    return {add_slot(TensorKind::kValues, tag, count * int64_t{sizeof(float)}),
            {kAllValues, all, {0, count}, {0, 1}}};
  }
  SlotView add_values(SlotTag tag, int64_t count, TensorKind kind = TensorKind::kValues) {
    return {add_slot(kind, tag, count * row_bytes(sharded_.problem, kind)),
            {kAllValues, {.first = rank_}, {0, count}, {0, 1}}};
  }
  // Activations, as Q is stored.
  MatrixView add_matrix(int64_t rows, int64_t cols, SlotTag tag = SlotTag::kActivations) {
    return {add_values(tag, rows * cols, TensorKind::kStored), 0, rows, cols};
  }
  Slice own() const {
    return {kEveryRow, {.first = rank_}, sharded_.all_tokens(), sharded_.all_heads()};
  }

  // An op after all that came before it.
  void add(Action what) {
    program_.ops.push_back({std::move(what), last_});
    last_ = {OpId(program_.ops.size()) - 1};
  }
  void rows(RowFunction function, std::vector<MatrixView> from, std::vector<MatrixView> into,
            bool accumulate = false) {
    add(RowWise{{std::move(from), std::move(into), accumulate}, function});
  }
  // into = a b + bias; into += a^T b; into = or += a b^T.
  void multiply(const MatrixView& a, const MatrixView& b, const MatrixView& bias,
                const MatrixView& into) {
    add(Gemm{{{a, b, bias}, {into}}});
  }
  void add_product_of_transposed(const MatrixView& a, const MatrixView& b, const MatrixView& into) {
    add(Gemm{{{a, b}, {into}, true}, true, false});
  }
  void multiply_transposed(const MatrixView& a, const MatrixView& b, const MatrixView& into,
                           bool accumulate = false) {
    add(Gemm{{{a, b}, {into}, accumulate}, false, true});
  }

  // The ops of `section`, whose slots are these, and `scratch` from its first other slot on, which
  // grows where it has too few: those without dependencies after all that came before, and what
  // comes next after those that none of them waits for.
  void append(const RankProgram& section, std::vector<int> slots, std::vector<int>& scratch) {
    size_t used = 0;
    for (size_t i = 0; i < section.slots.size(); ++i) {
      if (i < slots.size() && slots[i] >= 0) continue;
      if (used == scratch.size())
        scratch.push_back(
            add_slot(section.slots[i].kind, section.slots[i].tag, section.slots[i].bytes));
      if (i >= slots.size()) slots.resize(i + 1, -1);
      slots[i] = scratch[used++];
    }
    const auto base = OpId(program_.ops.size());
    std::vector<bool> awaited(section.ops.size());
    for (Op op : section.ops) {
      for (OpId& a : op.after) awaited[size_t(a)] = true, a += base;
      if (op.after.empty()) op.after = last_;
      for_each_view(op.what, [&](SlotView& view, bool) { view.slot = slots[size_t(view.slot)]; });
      program_.ops.push_back(std::move(op));
    }
    if (section.ops.empty()) return;
    last_.clear();
    for (size_t i = 0; i < awaited.size(); ++i)
      if (!awaited[i]) last_.push_back(base + OpId(i));
  }

  RankProgram take() { return std::move(program_); }

 private:
  const ShardedProblem& sharded_;
  Rank rank_;
  RankProgram program_;
  std::vector<OpId> last_;  // ops that the next one waits for
};

}  // namespace longnet
