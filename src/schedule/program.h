// A distributed attention algorithm, as data: what every rank does, in the field's own words.
//
// A Schedule gives each rank a RankProgram: buffer slots and ops with dependencies. The checker,
// the accountant, the printer and every executor read the same program; none of them knows an
// algorithm.
//
//   ring, P = 4, rank 1 (its own K/V rows are in slot kv, buffers A and B take the others'):
//     0 attend q x kv(1) -> output                 3 attend q x A(0) -> partial   (after 2)
//     1 send   kv(1) to rank 2                     4 merge  partial -> output     (after 0 3)
//     2 recv   A(0) from rank 0                    5 send   A(0) to rank 2        (after 2) ...
//
// Nothing here includes MPI, NCCL, CUDA or the simulator; all of them include this.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/problem.h"
#include "core/rank_group.h"
#include "core/token_range.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

using OpId = int;  // index into RankProgram::ops

struct HeadRange {
  int64_t first = 0, count = 0;  // query heads
  bool operator==(const HeadRange&) const = default;
};

// Order of tokens over ranks: rank p owns the tokens [begin(p), end(p)).
class SequenceLayout {
 public:
  SequenceLayout(int64_t seq_len, int world_size) : seq_len_(seq_len), world_size_(world_size) {}
  int world_size() const { return world_size_; }
  int64_t seq_len() const { return seq_len_; }
  TokenInterval shard(Rank p) const {
    return {part_begin(seq_len_, world_size_, p), part_begin(seq_len_, world_size_, p + 1)};
  }
  Rank owner(int64_t token) const;

 private:
  int64_t seq_len_;
  int world_size_;
};

// Which ranks gather a branch's rows: those that share a segment, or the whole world.
enum class GatherScope { kSegmentGroup, kWholeWorld };

// What a schedule is written for.
struct ShardedProblem {
  AttentionProblem problem;
  DilatedPattern pattern;
  SequenceLayout layout;
  GatherScope gather_scope = GatherScope::kSegmentGroup;
  HeadRange all_heads() const { return {0, problem.num_heads}; }
  TokenInterval all_tokens() const { return {0, problem.seq_len}; }
};

inline constexpr int kEveryRow = -1;

// A set of rows in closed form: of the tokens that `owners` own inside `within`, those that
// `branch` selects for each head (kEveryRow: all). In memory it is one piece per owner, in the
// order of `owners`; see RowMap.
struct Slice {
  int branch = kEveryRow;
  RankGroup owners;
  TokenInterval within;
  HeadRange heads;
  bool operator==(const Slice&) const = default;
};

enum class TensorKind { kQuery, kKeyValue, kPartial };  // partial: O and LSE, fp32

// What a slot is for; memory is measured and predicted by these tags.
enum class SlotTag { kQuery, kKeyValue, kOutput, kKvBuffer, kPacked, kGathered, kPartial };
std::string_view to_string(SlotTag tag);

struct Slot {
  TensorKind kind;
  SlotTag tag;
  int64_t bytes;  // capacity, for all sequences of the batch
};

// Slots that every program has: its shard of Q, of K and V, and of the output.
inline constexpr int kQuerySlot = 0, kKvSlot = 1, kOutputSlot = 2;

// A slot and the rows that it holds when the op runs.
struct Held {
  int slot = -1;
  Slice rows;
};

struct Select {
  Held from, into;
};  // pack the rows that into.rows.branch selects out of `from`
struct Send {
  Rank to;
  Held what;
};
struct Recv {
  Rank from;
  Held what;
};
struct AllGather {
  RankGroup group;
  Held own, into;
};  // into.rows.owners == group
// Query rows of `branch` in `queries` attend to all keys of `kv` that the branch selects in their
// segment. Overwrites the same rows of `into`.
struct Attend {
  int branch;
  TokenInterval queries;
  Held q, kv, into;
};
struct Merge {
  Held from, into;
};  // fold all rows of `from` into the same rows of `into`
struct Reset {
  Held into;
};  // every row becomes the identity (0, -inf)

using Action = std::variant<Select, Send, Recv, AllGather, Attend, Merge, Reset>;

struct Op {
  Action what;
  std::vector<OpId> after =
      {};  // ops of the same rank that must have finished before this one starts
};

struct RankProgram {
  std::vector<Slot> slots;
  std::vector<Op> ops;
};

struct Schedule {
  std::string algorithm;
  ShardedProblem sharded;
  // One rank's program, made when asked for: a ring over P ranks has about 4 P^2 ops in all.
  std::function<RankProgram(Rank)> program;
};

// Visitor from lambdas.
template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

}  // namespace longnet
