#include "schedule/accounting.h"

#include <algorithm>

#include "core/check.h"
#include "pattern/pair_count.h"
#include "schedule/row_map.h"

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
        const int64_t offset =
            head_offset(s.pattern.offset, head, s.problem.num_heads, rows.num_offsets());
        for (const TokenRange& r : piece.tokens)
          pairs += q.count * rows.count(offset, intersect(scope, {r.first, r.first + r.count}));
        continue;
      }
      keys.for_each_run(piece, branch, head, scope, [&](const TokenRange& k, int64_t) {
        pairs += count_pairs(q, k, s.problem.causal);
      });
    }
  return pairs;
}

double attended_pairs(const ShardedProblem& s, const Attend& op) {
  const RowMap queries(s, TensorKind::kQuery, op.q.rows),
      keys(s, TensorKind::kKeyValue, op.kv.rows);
  const BranchRows rows(s.pattern, op.branch, s.problem.seq_len);
  std::map<int64_t, int64_t> pairs_at_offset;  // heads of equal offset attend to equally many pairs
  double pairs = 0;
  for (int64_t head = op.heads.first; head < op.heads.first + op.heads.count; ++head) {
    const int64_t offset =
        head_offset(s.pattern.offset, head, s.problem.num_heads, rows.num_offsets());
    const auto [known, is_new] = pairs_at_offset.try_emplace(offset, 0);
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

int own_index(const RankGroup& group, Rank rank) {
  const int i = group.index_of(rank);
  check(i >= 0, "rank ", rank, " is not in its collective");
  return i;
}

}  // namespace

int64_t RankAccount::memory_bytes() const {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : memory_by_tag) sum += bytes;
  return sum;
}

RankAccount account(const ShardedProblem& s, const RankProgram& program, Rank rank) {
  RankAccount a;
  for (const Slot& slot : program.slots)
    a.memory_by_tag[std::string(to_string(slot.tag))] += slot.bytes;
  const auto bytes_of = [&](const Held& held) {
    return held_bytes(s, program.slots.at(size_t(held.slot)).kind, held);
  };
  for (const Op& op : program.ops)
    std::visit(Overload{
                   [&](const Select& o) { a.packed_bytes += bytes_of(o.into); },
                   [&](const Send& o) {
                     a.bytes_sent += bytes_of(o.what);
                     a.messages_sent += 1;
                   },
                   [&](const Recv& o) { a.bytes_received += bytes_of(o.what); },
                   [&](const AllGather& o) {
                     const int64_t own = bytes_of(o.into.piece(own_index(o.group, rank)));
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
                   [&](const ReduceScatter&) {
                     check(false, "a reduce_scatter is lowered before it is counted");
                   },
                   [&](const Attend& o) {
                     a.pairs += attended_pairs(s, o);
                     a.attends += 1;
                   },
                   [&](const Merge& o) {
                     a.merged_rows += bytes_of(o.from) / row_bytes(s.problem, TensorKind::kPartial);
                     a.merges += 1;
                   },
                   [&](const Reset&) {},
               },
               op.what);
  a.flops = pair_flops(a.pairs, s.problem.head_dim);
  return a;
}

std::vector<Rank> accounted_ranks(int world_size, int max_ranks) {
  const bool all = max_ranks <= 0 || world_size <= max_ranks;
  const int count = all ? world_size : 5;
  std::vector<Rank> ranks;
  for (int i = 0; i < count; ++i)
    ranks.push_back(all ? i : Rank(int64_t{world_size - 1} * i / (count - 1)));
  return ranks;
}

WorldAccount account(const Schedule& schedule, int max_ranks) {
  const ShardedProblem& s = schedule.sharded;
  const int world = s.layout.world_size();
  const std::vector<Rank> ranks = accounted_ranks(world, max_ranks);
  WorldAccount w;
  for (const Rank p : ranks) {
    const RankAccount a = account(s, schedule.program(p), p);
    w.flops += a.flops;
    w.pairs += a.pairs;
    w.max_rank_flops = std::max(w.max_rank_flops, a.flops);
    w.max_bytes_sent = std::max(w.max_bytes_sent, a.bytes_sent);
    w.max_messages_sent = std::max(w.max_messages_sent, a.messages_sent);
    w.total_bytes_sent += a.bytes_sent;
    if (a.memory_bytes() > w.max_memory_bytes) {
      w.max_memory_bytes = a.memory_bytes();
      w.memory_by_tag = a.memory_by_tag;
    }
  }
  if (int(ranks.size()) < world) {
    w.pairs = 0;
    for (int b = 0; b < int(s.pattern.branches.size()); ++b)
      w.pairs += branch_pairs(s.problem, s.pattern, b) * double(s.problem.batch);
    w.flops = pair_flops(w.pairs, s.problem.head_dim);
    w.total_bytes_sent = w.total_bytes_sent / int64_t(ranks.size()) * world;
  }
  w.paper_macs = paper_macs(s.problem, s.pattern);
  return w;
}

}  // namespace longnet
