#include "model/model_builder.h"

#include <numeric>

namespace longnet {
namespace {

// Names the ranks of a sequence as those of the one that `rank` is in.
void place(Action& what, const RankGrid& grid, Rank rank) {
  const auto place_group = [&](RankGroup& group) { group = grid.placed(group, rank); };
  for_each_view(what, [&](SlotView& view, bool) { place_group(view.rows.owners); });
  if (auto* send = std::get_if<Send>(&what)) send->to = grid.placed(send->to, rank);
  if (auto* recv = std::get_if<Recv>(&what)) recv->from = grid.placed(recv->from, rank);
  if (auto* gather = std::get_if<AllGather>(&what)) place_group(gather->group);
  if (auto* exchange = std::get_if<AllToAll>(&what)) place_group(exchange->group);
  if (auto* reduce = std::get_if<ReduceScatter>(&what)) place_group(reduce->group);
}

}  // namespace

ModelBuilder::ModelBuilder(const Parameters& parameters, const ShardedProblem& sharded, Rank rank,
                           Scope scope, Pass pass)
    : parameters_(parameters), sharded_(sharded), rank_(rank) {
  program_.scope = scope;
  program_.pass = pass;
  using enum TensorKind;
  const std::pair<TensorKind, SlotTag> of_attention[] = {{kQuery, SlotTag::kQuery},
                                                         {kKeyValue, SlotTag::kKeyValue},
                                                         {kPartial, SlotTag::kOutput},
                                                         {kGradOut, SlotTag::kGradOut},
                                                         {kStatistics, SlotTag::kStatistics},
                                                         {kGradQuery, SlotTag::kGradQuery},
                                                         {kGradKeyValue, SlotTag::kGradKeyValue}};
  for (const auto& [kind, tag] : of_attention) add_attention_slot(kind, tag);
  weights_ = add_parameter_values(SlotTag::kWeights);
  gradients_ = add_parameter_values(SlotTag::kWeightGradients);
}

int ModelBuilder::add_slot(TensorKind kind, SlotTag tag, int64_t bytes) {
  program_.slots.push_back({kind, tag, bytes});
  return int(program_.slots.size()) - 1;
}

int ModelBuilder::add_attention_slot(TensorKind kind, SlotTag tag) {
  return add_slot(kind, tag, view_bytes(sharded_, kind, {.rows = own()}));
}

SlotView ModelBuilder::add_shared_values(SlotTag tag, int64_t count) {
  return {add_slot(TensorKind::kValues, tag, count * int64_t{sizeof(float)}),
          {kAllValues, grid().everyone(), {0, count}, {0, 1}}};
}

SlotView ModelBuilder::add_values(SlotTag tag, int64_t count, TensorKind kind) {
  return {add_slot(kind, tag, count * row_bytes(problem(), kind)),
          {kAllValues, {.first = rank_}, {0, count}, {0, 1}}};
}

SlotView ModelBuilder::add_parameter_values(SlotTag tag) {
  const RankGroup ranks = grid().same_heads(rank_);
  const int64_t unit = ranks.count * std::lcm(problem().head_dim, 16);
  const int64_t count = ceil_div(parameters_.count(), unit) * unit;
  return {add_slot(TensorKind::kValues, tag, count * int64_t{sizeof(float)}),
          {kAllValues, ranks, {0, count}, {0, 1}}};
}

MatrixView ModelBuilder::of(const SlotView& values, std::string_view name) const {
  const Parameter& p = parameters_.find(name);
  return {values, p.first, p.rows, p.cols};
}

void ModelBuilder::add(Action what) { last_ = {program_.add(std::move(what), last_)}; }

void ModelBuilder::norm(const std::string& name, const MatrixView& x, const MatrixView& into) {
  rows(RowFunction::kLayerNorm, {x, weight(name + ".gain"), weight(name + ".bias")}, {into});
}

void ModelBuilder::norm_backward(const std::string& name, const MatrixView& x,
                                 const MatrixView& grad_y, const MatrixView& grad_x,
                                 bool accumulate) {
  rows(RowFunction::kLayerNormBackward, {x, grad_y, weight(name + ".gain")},
       {gradient(name + ".gain"), gradient(name + ".bias"), grad_x}, accumulate);
}

void ModelBuilder::linear(const std::string& name, const MatrixView& x, const MatrixView& into) {
  add(Gemm{{{x, weight(name + ".weight"), weight(name + ".bias")}, {into}}});
}

void ModelBuilder::weight_gradients(const std::string& name, const MatrixView& x,
                                    const MatrixView& grad_y) {
  add_product_of_transposed(x, grad_y, gradient(name + ".weight"));
  rows(RowFunction::kAddColumns, {grad_y}, {gradient(name + ".bias")});
}

void ModelBuilder::linear_backward(const std::string& name, const MatrixView& grad_y,
                                   const MatrixView& grad_x, bool accumulate, bool of_heads) {
  multiply_transposed(grad_y, weight(name + ".weight"), grad_x, accumulate, of_heads);
}

void ModelBuilder::sum_over_heads(const MatrixView& x) {
  if (!splits_heads()) return;
  add(ReduceScatter{grid().same_tokens(rank_), x.view});
  gather(x);
}

void ModelBuilder::split_norm(const std::string& name, const MatrixView& x,
                              const MatrixView& moments, const MatrixView& into) {
  if (!splits_heads()) return norm(name, x, into);
  rows(RowFunction::kRowMoments, {x}, {own_part(moments)});
  gather(moments);
  rows(RowFunction::kLayerNorm, {x, weight(name + ".gain"), weight(name + ".bias"), moments},
       {into});
}

void ModelBuilder::split_norm_backward(const std::string& name, const MatrixView& x,
                                       const MatrixView& grad, const MatrixView& moments,
                                       const MatrixView& sums, const MatrixView& grad_x) {
  if (!splits_heads()) return norm_backward(name, x, grad, grad_x);
  const MatrixView gain = weight(name + ".gain");
  rows(RowFunction::kRowMoments, {x}, {own_part(moments)});
  gather(moments);
  rows(RowFunction::kLayerNormSums, {x, grad, gain, moments}, {own_part(sums)});
  gather(sums);
  rows(RowFunction::kLayerNormBackward, {x, grad, gain, moments, sums},
       {gradient(name + ".gain"), gradient(name + ".bias"), grad_x});
}

// The bias and x come from one of the ranks that are summed up.
void ModelBuilder::split_linear(const std::string& name, const MatrixView& columns,
                                const MatrixView& x, const MatrixView& into) {
  const bool first = grid().head_group(rank_) == 0;
  Gemm product{{{columns, weight(name + ".weight")}, {into}, false, splits_heads()}};
  if (first) product.from.push_back(weight(name + ".bias"));
  add(std::move(product));
  if (first) add(RowWise{{{x}, {into}, true, splits_heads()}, RowFunction::kAdd});
  sum_over_heads(into);
}

void ModelBuilder::append(const RankProgram& section, std::vector<int> slots,
                          std::vector<int>& scratch) {
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
    place(op.what, grid(), rank_);
    program_.add(std::move(op.what), std::move(op.after));
  }
  if (section.ops.empty()) return;
  last_.clear();
  for (size_t i = 0; i < awaited.size(); ++i)
    if (!awaited[i]) last_.push_back(base + OpId(i));
}

}  // namespace longnet
