#include "schedule/accounting.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/check.h"

namespace longnet {
namespace {

// Pairs of one run of queries and one head. Causal: keys of other segments lie wholly before or
// after the queries, so only those of the own segment need the mask.
int64_t pairs_of_run(const ShardedProblem& s, const BranchRows& rows, const RowMap& keys,
                     int branch, int64_t head, const TokenRange& q, int64_t segment) {
  int64_t pairs = 0;
  for (const TokenInterval& scope : rows.key_scope(segment))
    for (const auto& piece : keys.pieces()) {
      if (scope.empty() || piece.tokens.empty()) continue;
      if (rows.is_summary()) {
        if (s.problem.causal && scope.begin > q.last()) continue;
        for (const TokenRange& r : piece.tokens)
          pairs += q.count *
                   rows.count(rows.offset_of(head), intersect(scope, {r.first, r.first + r.count}));
        continue;
      }
      keys.for_each_run(piece, branch, head, scope, [&](const TokenRange& k, int64_t) {
        pairs += count_pairs(q, k, s.problem.causal);
      });
    }
  return pairs;
}

// Queries of one head and branch against keys that hold every selected row of their segments.
double pairs_in_segments(const BranchRows& rows, int64_t offset, TokenInterval queries,
                         bool causal) {
  if (queries.empty()) return 0;
  const auto in_segment = [&](int64_t segment) {
    const TokenInterval whole = rows.segment(segment);
    return double(count_pairs(rows.select(offset, intersect(whole, queries)),
                              rows.select(offset, whole), causal));
  };
  const int64_t first = rows.segment_of(queries.begin), last = rows.segment_of(queries.end - 1);
  if (first == last) return in_segment(first);
  double pairs = in_segment(first) + in_segment(last);
  if (last > first + 1) pairs += double(last - first - 1) * in_segment(first + 1);
  return pairs;
}

// Rows that a branch selects in a range, of all heads.
double rows_of_heads(const BranchRows& rows, const HeadRange& heads, const TokenRange& range) {
  // Strided ranges are those of branches that take all.
  if (range.stride != 1 || (rows.num_offsets() == 1 && !rows.is_summary()))
    return double(range.count) * double(heads.count);
  double count = 0;
  for (int64_t h = heads.first; h < heads.end(); ++h)
    count += double(rows.count(rows.offset_of(h), {range.first, range.last() + 1}));
  return count;
}

// The closed form, where there is one.
std::optional<double> pairs_in_closed_form(const ShardedProblem& s, const Attend& op) {
  const BranchRows rows(s.pattern, op.branch, s.problem);
  if (rows.is_summary() || s.pattern.phase_parts > 1) return std::nullopt;
  const std::vector<TokenRange> queries = tokens_of(s, {.rows = op.q.rows});
  const std::vector<TokenRange> keys = tokens_of(s, {.rows = op.kv.rows});
  const double batch = double(s.problem.batch);
  double pairs = 0;
  if (rows.dilation_rate() == 1 && rows.num_segments() == 1) {
    for (const TokenRange& all : queries)
      for (const TokenRange& k : keys)
        pairs += double(count_pairs(clip(all, op.queries), k, s.problem.causal));
    return pairs * double(op.heads.count) * batch;
  }
  std::map<int64_t, double> known;
  for (const TokenRange& all : queries) {
    const TokenRange q = clip(all, op.queries);
    if (q.empty()) continue;
    if (q.stride != 1 || keys.size() != 1 || keys.front().stride != 1) return std::nullopt;
    const TokenInterval key_tokens{keys.front().first, keys.front().last() + 1};
    const TokenInterval query_tokens{q.first, q.last() + 1};
    for (const int64_t token : {q.first, q.last()})
      if (!key_tokens.contains(rows.segment(rows.segment_of(token)))) return std::nullopt;
    known.clear();
    for (int64_t h = op.heads.first; h < op.heads.end(); ++h) {
      const int64_t offset = rows.offset_of(h);
      const auto [at, is_new] = known.try_emplace(offset, 0);
      if (is_new) at->second = pairs_in_segments(rows, offset, query_tokens, s.problem.causal);
      pairs += at->second;
    }
  }
  return pairs * batch;
}

}  // namespace

double attended_pairs(const ShardedProblem& s, const Attend& op) {
  const std::optional<double> pairs = pairs_in_closed_form(s, op);
  return pairs ? *pairs : attended_pairs_by_runs(s, op);
}

double attended_queries(const ShardedProblem& s, const Attend& op) {
  const BranchRows rows = BranchRows(s.pattern, op.branch, s.problem).queries();
  double count = 0;
  for_each_query_range(s, op,
                       [&](const TokenRange& q) { count += rows_of_heads(rows, op.heads, q); });
  return count * double(s.problem.batch);
}

double attended_keys(const ShardedProblem& s, const Attend& op) {
  const BranchRows rows(s.pattern, op.branch, s.problem);
  TokenInterval seen{s.problem.seq_len, 0};
  for_each_query_range(s, op, [&](const TokenRange& q) {
    for (const int64_t token : {q.first, q.last()})
      for (const TokenInterval& scope : rows.key_scope(rows.segment_of(token))) {
        const int64_t end = s.problem.causal ? std::min(scope.end, q.last() + 1) : scope.end;
        if (scope.begin < end) seen = {std::min(seen.begin, scope.begin), std::max(seen.end, end)};
      }
  });
  double count = 0;
  for (const TokenRange& held : tokens_of(s, {.rows = op.kv.rows}))
    if (const TokenRange k = clip(held, seen); !k.empty())
      count += rows_of_heads(rows, op.heads, k);
  return count * double(s.problem.batch);
}

double attended_pairs_by_runs(const ShardedProblem& s, const Attend& op) {
  const RowMap queries(s, TensorKind::kQuery, op.q.rows),
      keys(s, TensorKind::kKeyValue, op.kv.rows);
  const BranchRows rows(s.pattern, op.branch, s.problem);
  std::map<int64_t, int64_t> pairs_at_offset;  // heads of equal offset attend to equally many pairs
  double pairs = 0;
  for (int64_t head = op.heads.first; head < op.heads.end(); ++head) {
    const auto [known, is_new] = pairs_at_offset.try_emplace(rows.offset_of(head), 0);
    if (is_new)
      for (const auto& piece : queries.pieces())
        queries.for_each_run(
            piece, op.branch, head, op.queries, [&](const TokenRange& q, int64_t segment) {
              known->second += pairs_of_run(s, rows, keys, op.branch, head, q, segment);
            });
    pairs += double(known->second);
  }
  return pairs * double(s.problem.batch);
}

double gemm_flops(const Gemm& op) {
  const MatrixView &a = op.from[0], &into = op.into[0];
  return 2.0 * double(into.rows) * double(into.cols) * double(op.transpose_a ? a.rows : a.cols);
}

int64_t matrix_bytes(const ShardedProblem& s, const RankProgram& program, const ModelOp& op) {
  const auto bytes_of = [&](const MatrixView& m) {
    const TensorKind kind = program.slots[size_t(m.view.slot)].kind;
    const DType dtype = holds_stored(kind) ? s.problem.dtype : DType::kFloat32;
    return m.rows * m.cols * dtype_bytes(dtype);
  };
  int64_t bytes = 0;
  for (const MatrixView& m : op.from) bytes += bytes_of(m);
  for (const MatrixView& m : op.into) {
    const SlotTag tag = program.slots[size_t(m.view.slot)].tag;
    const bool adds = tag == SlotTag::kWeightGradients || tag == SlotTag::kOptimizer ||
                      tag == SlotTag::kWeights || tag == SlotTag::kLogits ||
                      (op.accumulate && &m == &op.into.back());
    bytes += bytes_of(m) * (adds ? 2 : 1);
  }
  return bytes;
}

RankAccount account(const ShardedProblem& s, const RankProgram& program, Rank rank) {
  RankAccount a;
  a.memory_by_tag = program.memory_by_tag();
  double attended = 0, differentiated = 0;
  const auto bytes_of = [&](const SlotView& view) {
    return view_bytes(s, program.slots.at(size_t(view.slot)).kind, view);
  };
  for (const Op& op : program.ops)
    visit_op(
        op.what,
        [&](const Send& o) {
          a.bytes_sent += bytes_of(o.what);
          a.messages_sent += 1;
        },
        [&](const Recv& o) { a.bytes_received += bytes_of(o.what); },
        [&](const AllGather& o) {
          const int me = o.group.index_of(rank);
          check(me >= 0, "rank ", rank, " is not in its collective");
          const int64_t own = bytes_of(o.into.piece(me));
          a.bytes_sent += own * (o.group.count - 1);
          a.bytes_received += bytes_of(o.into) - own;
          if (own > 0) a.messages_sent += o.group.count - 1;
        },
        [&](const AllToAll& o) {
          for (int i = 0; i < o.group.count; ++i) {
            if (o.group[i] == rank) continue;
            const int64_t out = bytes_of(o.from.piece(i));
            a.bytes_sent += out;
            a.messages_sent += out > 0;
            a.bytes_received += bytes_of(o.into.piece(i));
          }
        },
        [](const ReduceScatter&) {
          check(false, "a reduce_scatter is lowered before it is counted");
        },
        [&](const Attend& o) { attended += attended_pairs(s, o); },
        [&](const AttendBackward& o) { differentiated += attended_pairs(s, o.attend()); },
        [](const Merge&) {}, [&](const Gemm& o) { a.gemm_flops += gemm_flops(o); },
        [](const Pack&) {}, [](const Reset&) {}, [](const Delta&) {}, [](const RowWise&) {},
        [](const CrossEntropy&) {}, [](const Update&) {});
  a.pairs = has_backward(program.pass) ? differentiated : attended;
  a.flops =
      pair_flops(attended + kBackwardFlops * differentiated, s.problem.head_dim) + a.gemm_flops;
  return a;
}

int64_t received_messages(const ShardedProblem& s, const RankProgram& program, Rank rank) {
  int64_t count = 0;
  const auto add = [&](const SlotView& piece) {
    count += view_bytes(s, program.slots.at(size_t(piece.slot)).kind, piece) > 0;
  };
  const auto add_from_others = [&](const RankGroup& group, const SlotView& into) {
    for (int i = 0; i < group.count; ++i)
      if (group[i] != rank) add(into.piece(i));
  };
  for (const Op& op : program.ops)
    visit_op(
        op.what, [&](const Recv& o) { add(o.what); },
        [&](const AllGather& o) { add_from_others(o.group, o.into); },
        [&](const AllToAll& o) { add_from_others(o.group, o.into); }, [](const auto&) {});
  return count;
}

RankCounts program_counts(const ShardedProblem& sharded, const RankProgram& program, Rank rank,
                          const RankAccount& a) {
  return {a.bytes_sent, a.messages_sent, a.bytes_received,
          received_messages(sharded, program, rank), a.memory_bytes()};
}

std::vector<Rank> accounted_ranks(int world_size, int max_ranks) {
  const bool all = max_ranks <= 0 || world_size <= max_ranks;
  const int count = all ? world_size : 5;
  std::vector<Rank> ranks;
  for (int i = 0; i < count; ++i)
    ranks.push_back(all ? i : Rank(int64_t{world_size - 1} * i / (count - 1)));
  return ranks;
}

WorldAccount account(const Schedule& schedule, int max_ranks, int64_t layers) {
  const ShardedProblem& s = schedule.sharded;
  const RankGrid grid = s.layout.grid();
  const std::vector<Rank> ranks = accounted_ranks(s.layout.world_size(), max_ranks);
  WorldAccount w;
  double gemm_flops = 0;
  for (const Rank p : ranks) {
    const RankAccount a = account(s, schedule.program(p), p);
    w.flops += a.flops;
    w.pairs += a.pairs;
    gemm_flops += a.gemm_flops;
    w.max_rank_flops = std::max(w.max_rank_flops, a.flops);
    w.max_bytes_sent = std::max(w.max_bytes_sent, a.bytes_sent);
    w.max_messages_sent = std::max(w.max_messages_sent, a.messages_sent);
    if (a.memory_bytes() > w.max_memory_bytes()) w.memory_by_tag = a.memory_by_tag;
  }
  if (int(ranks.size()) < s.layout.world_size()) {
    double pairs = 0;
    for (int b = 0; b < int(s.pattern.branches.size()); ++b)
      pairs += branch_pairs(s.problem, s.pattern, b);
    pairs *= double(layers * s.problem.batch * grid.replicas * grid.head_groups);
    const double of_pair = w.pairs > 0 ? (w.flops - gemm_flops) / w.pairs : 0;
    w.flops = of_pair * pairs + gemm_flops * s.layout.world_size() / double(ranks.size());
    w.pairs = pairs;
  }
  w.paper_macs = paper_macs(s.problem, s.pattern);
  return w;
}

}  // namespace longnet
