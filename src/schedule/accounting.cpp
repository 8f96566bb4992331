#include "schedule/accounting.h"

#include <algorithm>

#include "pattern/pair_count.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

int64_t attended_pairs(const ShardedProblem& s, const Attend& op) {
  const RowMap queries(s, TensorKind::kQuery, op.q.rows),
      keys(s, TensorKind::kKeyValue, op.kv.rows);
  const BranchRows rows(s.pattern, op.branch, s.problem.seq_len);
  std::map<int64_t, int64_t> pairs_at_offset;  // heads of equal offset attend to equally many pairs
  int64_t pairs = 0;
  const HeadRange heads = op.q.rows.heads;
  for (int64_t head = heads.first; head < heads.first + heads.count; ++head) {
    const int64_t offset =
        head_offset(s.pattern.offset, head, s.problem.num_heads, rows.dilation_rate());
    const auto [known, is_new] = pairs_at_offset.try_emplace(offset, 0);
    if (is_new) {
      for (const auto& q_piece : queries.pieces())
        queries.for_each_run(
            q_piece, op.branch, head, op.queries, [&](const TokenRange& q, int64_t segment) {
              for (const auto& kv_piece : keys.pieces())
                keys.for_each_run(kv_piece, op.branch, head, rows.segment(segment),
                                  [&](const TokenRange& k, int64_t) {
                                    known->second += count_pairs(q, k, s.problem.causal);
                                  });
            });
    }
    pairs += known->second;
  }
  return pairs * s.problem.batch;
}

}  // namespace

int64_t RankAccount::memory_bytes() const {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : memory_by_tag) sum += bytes;
  return sum;
}

RankAccount account(const ShardedProblem& s, const RankProgram& program) {
  RankAccount a;
  for (const Slot& slot : program.slots)
    a.memory_by_tag[std::string(to_string(slot.tag))] += slot.bytes;
  const auto bytes_of = [&](const Held& held) {
    return slice_bytes(s, program.slots.at(size_t(held.slot)).kind, held.rows);
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
                     const int64_t own = bytes_of(o.own);
                     a.bytes_sent += own * (o.group.count - 1);
                     a.bytes_received += bytes_of(o.into) - own;
                     if (own > 0) a.messages_sent += o.group.count - 1;
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

WorldAccount account(const Schedule& schedule) {
  WorldAccount w;
  for (Rank p = 0; p < schedule.sharded.layout.world_size(); ++p) {
    const RankAccount a = account(schedule.sharded, schedule.program(p));
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
  w.paper_macs = paper_macs(schedule.sharded.problem, schedule.sharded.pattern);
  return w;
}

}  // namespace longnet
