// Cost of a program, counted from its ops: FLOPs, bytes, messages, memory. No clock, no hardware.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/tagged_memory.h"
#include "schedule/closed_form_counts.h"
#include "schedule/row_map.h"

namespace longnet {

struct RankAccount {
  double pairs = 0;       // (query, key, head) pairs, whole batch
  double flops = 0;       // 4 head_dim per pair, 10 head_dim in a backward pass; and gemm_flops
  double gemm_flops = 0;  // 2 per multiply-add of a model's products
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t messages_sent = 0;                     // non-empty ones
  std::map<std::string, int64_t> memory_by_tag;  // bytes of all slots, by SlotTag
  int64_t memory_bytes() const { return total_bytes(memory_by_tag); }
};

// (query, key, head) pairs of one op, whole batch: in closed form where rows lie in few ranges,
// else run by run.
double attended_pairs(const ShardedProblem& sharded, const Attend& op);
double attended_pairs_by_runs(const ShardedProblem& sharded, const Attend& op);
// Query rows of one op: tokens x heads x batch.
double attended_queries(const ShardedProblem& sharded, const Attend& op);
// Key rows of one op that its last query or an earlier one may see: tokens x query heads x batch.
double attended_keys(const ShardedProblem& sharded, const Attend& op);
// Calls fn(range) for each owner's ranges of query tokens that the op attends.
template <class Fn>
void for_each_query_range(const ShardedProblem& sharded, const Attend& op, Fn fn) {
  for (int i = 0; i < op.q.rows.owners.count; ++i)
    for (const TokenRange& all : owned_tokens(sharded, op.q.rows.owners[i], op.q.rows.within))
      if (const TokenRange range = clip(all, op.queries); !range.empty()) fn(range);
}

double gemm_flops(const Gemm& op);
// Bytes that a model's op reads and writes, each matrix once; what it adds to, or a function
// overwrites, twice.
int64_t matrix_bytes(const ShardedProblem& sharded, const RankProgram& program, const ModelOp& op);

// An all-gather counts as each member sending its own rows to every other member: group size - 1
// messages, the least that any algorithm must deliver. Lowered all-gathers (sends and receives)
// count their own messages.
RankAccount account(const ShardedProblem& sharded, const RankProgram& program, Rank rank);
// Non-empty messages that a rank receives. Apart from its account, because it looks at every member
// of a gather: plans and walks over thousands of ranks do without.
int64_t received_messages(const ShardedProblem& sharded, const RankProgram& program, Rank rank);
// Both, to be held against closed forms and against what was counted. `account`: the rank's.
RankCounts program_counts(const ShardedProblem& sharded, const RankProgram& program, Rank rank,
                          const RankAccount& account);
inline RankCounts program_counts(const ShardedProblem& sharded, const RankProgram& program,
                                 Rank rank) {
  return program_counts(sharded, program, rank, account(sharded, program, rank));
}

// Totals over ranks: sums of work, maxima of bytes, messages and memory.
struct WorldAccount {
  double flops = 0, paper_macs = 0;
  double pairs = 0;
  double max_rank_flops = 0;  // the slowest rank's share decides the latency
  int64_t max_bytes_sent = 0, max_messages_sent = 0;
  std::map<std::string, int64_t> memory_by_tag;  // on the rank with the largest memory
  int64_t max_memory_bytes() const { return total_bytes(memory_by_tag); }
  double balance(int world_size) const {
    return max_rank_flops > 0 ? flops / (world_size * max_rank_flops) : 1.0;
  }
};
// Ranks that represent a world: all of them, or five from the first to the last when there are
// more than `max_ranks` (0: no limit).
std::vector<Rank> accounted_ranks(int world_size, int max_ranks);

// Accounts at most `max_ranks` ranks spread over the world (0: all). If ranks are left out, maxima
// are over the others, pairs are those of the pattern in each of `layers`, and products of matrices
// those of the others' mean.
WorldAccount account(const Schedule& schedule, int max_ranks = 0, int64_t layers = 1);

}  // namespace longnet
