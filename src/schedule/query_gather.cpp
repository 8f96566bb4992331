// Exact attention that moves queries and results instead of keys: all ranks gather all queries,
// attend with their own K/V rows, and a reduce-scatter merges the partial results by LSE (the
// reduction of Tree Attention, Shyam et al., arXiv 2408.04093, applied to a whole prefill). Worth
// it when K/V shards are larger than queries and partials, which grouped queries make rare: a
// baseline that shows why K/V travel.
//
//   P = 2, rank 0:   gather q(0) q(1)
//                    attend both x kv(0) -> partials of 0 and of 1
//                    send the partial of 1 to rank 1, merge rank 1's partial of 0 into the own
//
// Backward, dO, L and delta come with the queries; K, V and their gradients stay, and the
// reduce-scatter sums dQ.
#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// Both passes: what belongs to the queries is gathered, one op attends to the own keys, and what it
// makes of the queries is reduced.
class QueryGatherProgram {
 public:
  QueryGatherProgram(const ShardedProblem& sharded, Rank rank, Pass pass)
      : everyone_{.count = sharded.layout.world_size()}, rank_(rank), build_(sharded, rank, pass) {}

  RankProgram make() {
    if (everyone_.count == 1) {
      build_.add(build_.attend_of(build_.kv(), build_.output()));
      return build_.take();
    }
    const auto [queries, gathered] = gather(build_.q(), TensorKind::kQuery);
    const SlotView partials = add(TensorKind::kPartial, SlotTag::kPartial);
    Attend attend = build_.attend_of(build_.kv(), partials);
    attend.q = queries;
    reduce(partials, build_.add(attend, {gathered}), build_.output());
    return build_.take();
  }

  RankProgram make_backward() {
    if (everyone_.count == 1) {
      GradientSum sum(build_);
      sum.add(build_.attend_of(build_.kv()), sum.own_keys());
      return build_.take();
    }
    const BackwardSlots own = build_.backward_rows();
    const auto [queries, q_ready] = gather(own.q, TensorKind::kQuery);
    const auto [grad_out, ready] = gather(own.grad_out, TensorKind::kGradOut);
    const SlotView statistics = add(TensorKind::kStatistics, SlotTag::kGathered);
    const OpId delta =
        build_.add(Delta{own.output, own.output, own.grad_out, statistics.piece(rank_)});
    const OpId known = build_.add(AllGather{everyone_, statistics}, {delta});
    const SlotView sums = add(TensorKind::kGradQuery, SlotTag::kPartial);
    const OpId zero = build_.add(Reset{sums}), keys_zero = build_.add(Reset{own.grad_kv});
    const Attend attend = build_.attend_of(build_.kv());
    const OpId attended =
        build_.add(AttendBackward{attend.branch, attend.queries, attend.heads, queries, attend.kv,
                                  grad_out, statistics, sums, own.grad_kv},
                   {q_ready, ready, known, zero, keys_zero});
    reduce(sums, attended, own.grad_q);
    return build_.take();
  }

 private:
  SlotView add(TensorKind kind, SlotTag tag) {  // a slot for the queries of all ranks
    return build_.add_view(kind, tag, build_.every_row_of(everyone_, build_.own().heads));
  }
  std::pair<SlotView, OpId> gather(const SlotView& own, TensorKind kind) {
    const SlotView all = add(kind, SlotTag::kGathered);
    const OpId copied = build_.add(Pack{own, all.piece(rank_)});
    return {all, build_.add(AllGather{everyone_, all}, {copied})};
  }
  void reduce(const SlotView& all, OpId attended, const SlotView& own) {
    const OpId reduced = build_.add(ReduceScatter{everyone_, all}, {attended});
    if (!build_.is_empty(own.rows)) build_.add(Pack{all.piece(rank_), own}, {reduced});
  }

  RankGroup everyone_;
  Rank rank_;
  ProgramBuilder build_;
};

}  // namespace

Schedule query_gather_attention(const ShardedProblem& sharded, Pass pass) {
  return {sharded, [=](Rank rank) {
            QueryGatherProgram program(sharded, rank, pass);
            return pass == Pass::kForward ? program.make() : program.make_backward();
          }};
}

}  // namespace longnet
