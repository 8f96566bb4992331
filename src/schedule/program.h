// A distributed attention algorithm as data: a Schedule gives each rank a RankProgram, buffer slots
// and ops with dependencies. The checker, the accountant, the printer and every executor read the
// same program; none of them depends on an algorithm.
//
//   ring, P = 4, rank 1 (its own K/V rows are in slot kv, buffers A and B take the others'):
//     0 send   kv(1) to rank 2                     4 recv   B(3) from rank 0
//     1 recv   A(0) from rank 0                    5 attend q x A(0) -> partial   (after 1)
//     2 attend q x kv(1) -> output                 6 merge  partial -> output     (after 2 5)
//     3 send   A(0) to rank 2        (after 1)     7 send   B(3) to rank 2        (after 4) ...
//
// Nothing here includes MPI, NCCL, CUDA or the simulator; all of them include this.
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/model_shape.h"
#include "schedule/sharded_problem.h"

namespace longnet {

using OpId = int;  // index into RankProgram::ops

// In the place of a slice's branch: all rows; values that are no rows of tokens.
inline constexpr int kEveryRow = -1, kAllValues = -2;

// A set of rows in closed form: of the tokens that `owners` own inside `within`, those that
// `branch` selects for each head (kEveryRow: all). In memory it is one piece per owner, in the
// order of `owners`, and within an owner one per head part, when the heads are split in nearly
// equal parts (part_begin); see RowMap. Owners of stride 0: pieces of one rank's rows, as several
// ranks have them.
//
// A slice of kAllValues is the values `within` of a vector (weights, activations), one nearly equal
// part (part_begin) per owner.
struct Slice {
  int branch = kEveryRow;
  RankGroup owners;
  TokenInterval within;
  HeadRange heads;
  int head_parts = 1;
  int num_pieces() const { return owners.count * head_parts; }
  auto operator<=>(const Slice&) const = default;
};

// kPartial: O (of output_dtype) and LSE, fp32. kResult: O alone, rounded to the storage type, as it
// is sent when nothing is merged into it any more. In a backward pass: kGradOut, dO as it is
// stored; kStatistics, L and delta of each query row, fp32; kGradQuery and kGradKeyValue, sums of
// dQ and of dK and dV, fp32. They lie as Q, and as K and V, row for row. kValues: fp32 values of a
// model, in slices of kAllValues; kStored: activations, as Q is stored.
enum class TensorKind {
  kQuery,
  kKeyValue,
  kPartial,
  kResult,
  kGradOut,
  kStatistics,
  kGradQuery,
  kGradKeyValue,
  kValues,
  kStored
};
inline bool holds_o(TensorKind kind) {
  return kind == TensorKind::kPartial || kind == TensorKind::kResult;
}
inline bool holds_keys(TensorKind kind) {  // rows of K/V heads, of two tensors
  return kind == TensorKind::kKeyValue || kind == TensorKind::kGradKeyValue;
}
inline bool holds_stored(TensorKind kind) {  // rows in the storage type
  return kind == TensorKind::kQuery || kind == TensorKind::kKeyValue ||
         kind == TensorKind::kGradOut || kind == TensorKind::kStored;
}
inline bool holds_sum(TensorKind kind) {  // rows that a merge adds up
  return kind == TensorKind::kGradQuery || kind == TensorKind::kGradKeyValue ||
         kind == TensorKind::kValues;
}

// Purpose of a slot; memory is measured and predicted by these tags.
enum class SlotTag {
  kQuery,
  kKeyValue,
  kOutput,
  kKvBuffer,
  kPacked,
  kGathered,
  kPartial,
  kExchange,
  kGradOut,
  kStatistics,
  kGradQuery,
  kGradKeyValue,
  kLayerInput,
  kTokens,
  kWeights,
  kWeightGradients,
  kOptimizer,
  kActivations,
  kLogits
};
constexpr auto texts_of(SlotTag) {
  return texts("query", "key_value", "output", "kv_buffer", "packed", "gathered", "partial",
               "exchange", "grad_out", "statistics", "grad_query", "grad_key_value", "layer_input",
               "tokens", "weights", "weight_gradients", "optimizer", "activations", "logits");
}

struct Slot {
  TensorKind kind;
  SlotTag tag;
  int64_t bytes;  // capacity, for all sequences of the batch
};

// Slots that every program has: its shard of Q, of K and V, and of the output.
inline constexpr int kQuerySlot = 0, kKvSlot = 1, kOutputSlot = 2;
// The program of a backward pass has its shard of dO, statistics, dQ, and dK and dV as well. Its
// inputs are Q, K, V, dO, the output, and what it has kept (RankProgram::kept). Both passes as one
// program make these last two.
inline constexpr int kGradOutSlot = 3, kStatisticsSlot = 4, kGradQuerySlot = 5, kGradKvSlot = 6;

// Some pieces of a slice, in its order.
struct PieceRange {
  int first = 0, count = -1;  // -1: all
  auto operator<=>(const PieceRange&) const = default;
};

// A slot, the slice that it is laid out for, and the pieces of it that an op touches.
struct SlotView {
  int slot = -1;
  Slice rows;
  PieceRange pieces = {};
  SlotView piece(int i) const { return {slot, rows, {i, 1}}; }
  SlotView range(int first, int count) const { return {slot, rows, {first, count}}; }
  int first_piece() const { return pieces.first; }
  int num_pieces() const {
    return pieces.count < 0 ? rows.num_pieces() - pieces.first : pieces.count;
  }
  // Pieces that hold the same rows: all where they have one owner, else one.
  int pieces_of_a_row() const { return rows.owners.stride == 0 ? num_pieces() : 1; }
};

// ---- ops: views() of each names the views that it reads and writes ----

// Copies the rows of `into` (one piece) out of `from`: packs a branch's rows or some heads, or
// unpacks them. A partial packed into a result is rounded and loses its LSE; the other way, the
// partial gets no LSE and nothing can be merged with it.
struct Pack {
  SlotView from, into;
  static void views(auto& op, auto read, auto write) { read(op.from), write(op.into); }
};
struct Send {
  Rank to;
  SlotView what;
  static void views(auto& op, auto read, auto) { read(op.what); }
};
struct Recv {
  Rank from;
  SlotView what;
  static void views(auto& op, auto, auto write) { write(op.what); }
};
// Gathers in place: piece i of `into` belongs to member i; the own piece is there already.
struct AllGather {
  RankGroup group;
  SlotView into;
  static void views(auto& op, auto, auto write) { write(op.into); }
};
// Piece i of `from` goes to member i; piece i of `into` comes from member i.
struct AllToAll {
  RankGroup group;
  SlotView from, into;
  static void views(auto& op, auto read, auto write) { read(op.from), write(op.into); }
};
// Merges partials in place: piece i of `what` of all members, on member i. Always lowered before it
// runs.
struct ReduceScatter {
  RankGroup group;
  SlotView what;
  static void views(auto& op, auto, auto write) { write(op.what); }
};
// Query rows of `branch` in `queries`, for the query heads `heads`, attend to all keys of `kv` that
// the branch lets them see. Overwrites the same rows of `into`.
struct Attend {
  int branch;
  TokenInterval queries;
  HeadRange heads;
  SlotView q, kv, into;
  static void views(auto& op, auto read, auto write) { read(op.q), read(op.kv), write(op.into); }
};
// Folds all rows of `from` into the same rows of `into`: partials by LSE, gradients as a sum.
// Pieces of one owner's gradients (RankGroup of stride 0) are added in their order.
struct Merge {
  SlotView from, into;
  static void views(auto& op, auto read, auto write) { read(op.from), write(op.into); }
};
// Sets every row to the identity: (0, -inf), or a gradient of 0.
struct Reset {
  SlotView into;
  static void views(auto& op, auto, auto write) { write(op.into); }
};
// L and delta = dO . O of each row: O of `output`, L of `lse`, the same or the merged output.
struct Delta {
  SlotView output, lse, grad_out, into;
  static void views(auto& op, auto read, auto write) {
    read(op.output), read(op.lse), read(op.grad_out), write(op.into);
  }
};
// The backward pass of the attend with these queries and keys: adds to the same rows of `into_q`,
// and to those of `into_kv` that they see. Rows of queries have the layout of `q`, rows of keys
// that of `kv`.
struct AttendBackward {
  int branch;
  TokenInterval queries;
  HeadRange heads;
  SlotView q, kv, grad_out, statistics, into_q, into_kv;
  Attend attend() const { return {branch, queries, heads, q, kv, into_q}; }
  static void views(auto& op, auto read, auto write) {
    read(op.q), read(op.kv), read(op.grad_out), read(op.statistics);
    write(op.into_q), write(op.into_kv);
  }
};

// ---- ops of a model's layers, see src/model ----

// A row-major matrix in a slot of one piece a rank, or in all pieces of it: from its value `first`.
struct MatrixView {
  SlotView view;
  int64_t first = 0, rows = 0, cols = 0;
};
// The matrices that an op reads, in the order stated at each op, and those that it writes.
struct ModelOp {
  std::vector<MatrixView> from, into;
  bool accumulate = false;  // adds to the last of `into`, which holds a value
  // The last of `into` is what this rank's heads add to a sum over the ranks of its tokens.
  bool of_heads = false;
  static void views(auto& op, auto read, auto write) {
    for (auto& matrix : op.from) read(matrix.view);
    for (auto& matrix : op.into) write(matrix.view);
  }
};
// from: a, b, and perhaps a bias of one row. into = op(a) op(b) + bias; op transposes where asked.
struct Gemm : ModelOp {
  bool transpose_a = false, transpose_b = false;
};
enum class RowFunction {
  kEmbed,              // from: tokens, table
  kEmbedBackward,      // from: tokens, dy; adds to the table's gradient
  kLayerNorm,          // from: x, gain, bias; of columns on several ranks also their moments
  kLayerNormBackward,  // from: x, dy, gain; adds to the gradients of gain and bias; last: dx; of
                       // columns on several ranks it has moments and the sums of all as well
  kRowMoments,         // from: x; into: of each row mean and sum of squares about it
  kLayerNormSums,      // from: x, dy, gain, moments; into: of each row what kLayerNormBackward sums
  kGelu,               // from: x
  kGeluBackward,       // from: x, dy
  kRotate,             // from: x, which it overwrites: rotary positions or xPos
  kRotateBackward,     // the same, of gradients
  kAdd,                // from: x; adds
  kAddColumns,         // from: x; adds the sum of its rows
  kSumOfSquares        // from: x; into: one double, which it adds to
};
constexpr auto texts_of(RowFunction) {
  return texts("embed", "embed_backward", "layer_norm", "layer_norm_backward", "row_moments",
               "layer_norm_sums", "gelu", "gelu_backward", "rotate", "rotate_backward", "add",
               "add_columns", "sum_of_squares");
}
// A function of each row alone, or a sum over rows.
struct RowWise : ModelOp {
  RowFunction function = RowFunction::kAdd;
  // kRotate: keys have the inverse of the factors of queries, zeta^((position - centre) / scale);
  // scale 0: rotary positions, without factors.
  bool keys = false;
  double xpos_scale = 0, xpos_centre = 0;
};
// from: targets, one a row. into: logits, which become their gradients times `scale`, and the sum
// of losses, one double, which it adds to.
struct CrossEntropy : ModelOp {
  double scale = 1;
};
// AdamW with clipping to a norm. from: gradients, squared norms of all pieces of them (every other
// double), {step, learning rate}. into: weights, first and second moments.
struct Update : ModelOp {
  double decay = 0, clip_norm = 1;
};

using Action = std::variant<Pack, Send, Recv, AllGather, AllToAll, ReduceScatter, Attend, Merge,
                            Reset, Delta, AttendBackward, Gemm, RowWise, CrossEntropy, Update>;

inline bool is_collective(const Action& a) {
  return std::holds_alternative<AllGather>(a) || std::holds_alternative<AllToAll>(a) ||
         std::holds_alternative<ReduceScatter>(a);
}
inline bool is_communication(const Action& a) {
  return is_collective(a) || std::holds_alternative<Send>(a) || std::holds_alternative<Recv>(a);
}

// Visitor from lambdas.
template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

// Calls the one of `cases` that takes this op: visit_op(op.what, [](const Send& o) {...}, ...).
template <class... Case>
decltype(auto) visit_op(const Action& what, Case... cases) {
  return std::visit(Overload{cases...}, what);
}

// Calls fn(view, whether the op writes there) for each view of an op: first those that it reads.
template <class MaybeConstAction, class Fn>
void for_each_view(MaybeConstAction& what, Fn fn) {
  const auto read = [&](auto& view) { fn(view, false); };
  const auto write = [&](auto& view) { fn(view, true); };
  std::visit([&](auto& op) { op.views(op, read, write); }, what);
}

struct Op {
  Action what;
  std::vector<OpId> after = {};  // ops of the same rank that must finish before this one starts
};

// Rows of a backward pass that begin as the forward pass of the rank leaves them in its slot
// `forward`, with the same layout.
struct Kept {
  int forward;
  SlotView view;
};

struct RankProgram {
  static constexpr size_t kMostOps = (size_t{1} << 29) / sizeof(Op);  // half a GiB
  Pass pass = Pass::kForward;
  Scope scope = Scope::kAttention;
  std::vector<Slot> slots;
  std::vector<Op> ops;
  std::vector<Kept> kept = {};
  // Appends an op. Throws UsageError beyond kMostOps.
  OpId add(Action what, std::vector<OpId> after);
  // True for a slot that the program reads and never writes.
  bool is_input(int slot) const;
  // True when the output gets its LSE and O in full fp32: it does not come as a result.
  bool output_is_partial() const;
  // Bytes of the slots by their tags, each slot rounded up to a multiple of `align`.
  std::map<std::string, int64_t> memory_by_tag(int64_t align = 1) const;
};

// Both passes as one program: `backward` begins where `forward` has completed the output. The slots
// that both have are shared; the others of `forward` lie behind those of `backward`.
RankProgram one_after_the_other(RankProgram forward, RankProgram backward);

struct Schedule {
  ShardedProblem sharded;
  // One rank's program, made when asked for: a ring over P ranks has about 4 P^2 ops in all.
  std::function<RankProgram(Rank)> program;
  std::string algorithm{};  // its name, by make_schedule; for messages and drawings
  // The forward pass that makes the output of a backward pass alone; empty for other passes.
  std::function<RankProgram(Rank)> forward{};
  // Published implementations have a communicator for each group of so many neighbours in the
  // sequence, and others across these groups; 0: one for all.
  int inner_group{};
};

// ---- programs for people: text for `lnbench plan --schedule`, Graphviz for `--dot` ----

std::string to_text(const Slice& slice);
std::string to_text(const RankProgram& program, const Op& op);  // without number, dependencies
std::string to_text(const ShardedProblem& sharded, const RankProgram& program, Rank rank);
// One cluster per rank, solid edges for dependencies, dashed ones for messages between the ranks
// shown.
std::string to_dot(const Schedule& schedule, int max_ranks);

}  // namespace longnet
