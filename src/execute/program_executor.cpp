#include "execute/program_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/random.h"

namespace longnet {

// What run() needs of an op, ready made.
struct ProgramExecutor::BoundOp {
  std::vector<AttendTask> attends;
  std::vector<KvRun> kv_runs;  // the attends' spans point into it
  std::vector<MergeTask> merges;
  std::vector<PackTask> packs;
  std::vector<std::span<float>> zeros, absent;  // O and LSE that a reset fills
  int64_t tasks_per_poke = 0;
  // Communications.
  Rank peer = -1;
  RankGroup group;
  std::span<std::byte> own, into;
  std::vector<int64_t> counts;
  Communicator::Request request = -1;
};

namespace {

constexpr int64_t kRowsPerTask = 2048;  // queries: enough to make packing keys cheap
constexpr double kFlopsPerPoke = 1e9;   // about 10 ms of one core between two looks at messages

bool is_communication(const Op& op) {
  return std::holds_alternative<Send>(op.what) || std::holds_alternative<Recv>(op.what) ||
         std::holds_alternative<AllGather>(op.what);
}

}  // namespace

ProgramExecutor::ProgramExecutor(const Schedule& schedule, const AttentionKernel& kernel,
                                 int threads, Communicator& comm, MemoryLedger& ledger)
    : sharded_(schedule.sharded),
      program_(schedule.program(comm.rank())),
      kernel_(kernel),
      threads_(threads),
      comm_(comm) {
  check(comm.size() == sharded_.layout.world_size(), "the schedule is for ",
        sharded_.layout.world_size(), " ranks, the communicator has ", comm.size());
  const AttentionProblem& p = sharded_.problem;
  const MixRule mix = sharded_.pattern.mix;
  options_ = {.head_dim = p.head_dim, .dtype = p.dtype, .causal = p.causal};
  if (mix == MixRule::kMean) options_.output_scale = 1.0f / float(sharded_.pattern.branches.size());
  merge_rule_ = mix == MixRule::kLse ? MergeRule::kLse : MergeRule::kSum;
  const std::string refusal = kernel.why_unsupported(options_);
  check(refusal.empty(), "kernel ", kernel.name(), ": ", refusal);

  for (const Slot& slot : program_.slots)
    slots_.emplace_back(ledger, std::string(to_string(slot.tag)), slot.bytes);
  workspace_ = TaggedBuffer(ledger, "workspace", kernel.workspace_bytes(options_, threads));
  bound_.resize(program_.ops.size());
  times_.resize(program_.ops.size());
  in_flight_.reserve(program_.ops.size());
  for (size_t i = 0; i < program_.ops.size(); ++i) bind(program_.ops[i], bound_[i]);
}

ProgramExecutor::~ProgramExecutor() = default;

void ProgramExecutor::bind(const Op& op, BoundOp& bound) {
  const auto bytes_of = [&](const Held& held) {
    return slots_[size_t(held.slot)].bytes().first(
        size_t(slice_bytes(sharded_, TensorKind::kKeyValue, held.rows)));
  };
  std::visit(Overload{
                 [&](const Select& o) { bind_select(o, bound); },
                 [&](const Send& o) { bound.peer = o.to, bound.own = bytes_of(o.what); },
                 [&](const Recv& o) { bound.peer = o.from, bound.into = bytes_of(o.what); },
                 [&](const AllGather& o) {
                   bound.group = o.group, bound.own = bytes_of(o.own),
                   bound.into = bytes_of(o.into);
                   const RowMap map(sharded_, TensorKind::kKeyValue, o.into.rows);
                   for (const auto& piece : map.pieces())
                     bound.counts.push_back(map.piece_bytes(piece));
                   comm_.open_group(o.group);
                 },
                 [&](const Attend& o) { bind_attend(o, bound); },
                 [&](const Merge& o) { bind_merge(o, bound); },
                 [&](const Reset& o) { bind_reset(o, bound); },
             },
             op.what);
}

PartialRun ProgramExecutor::partial_at(const Held& held, const RowMap::Piece& piece,
                                       RowMap::Place place) const {
  const int64_t d = sharded_.problem.head_dim;
  auto* const o = reinterpret_cast<float*>(slots_[size_t(held.slot)].data() + piece.byte_offset);
  return {.o = o + place.row * d,
          .lse = o + piece.rows * d + place.row,
          .o_stride = place.step * d,
          .lse_stride = place.step};
}

void ProgramExecutor::bind_attend(const Attend& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const RowMap queries(sharded_, TensorKind::kQuery, op.q.rows);
  const RowMap keys(sharded_, TensorKind::kKeyValue, op.kv.rows);
  const RowMap out(sharded_, TensorKind::kPartial, op.into.rows);
  const BranchRows rows(sharded_.pattern, op.branch, p.seq_len);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);
  const std::byte* const q_base = slots_[size_t(op.q.slot)].data();
  const std::byte* const kv_base = slots_[size_t(op.kv.slot)].data();

  struct Span {
    size_t begin, count;
  };
  std::vector<Span> spans;  // of each task in kv_runs, which still grows
  double pairs = 0;
  const auto add_tasks = [&](int64_t batch, int64_t head, size_t piece_index, const TokenRange& run,
                             int64_t segment) {
    const size_t begin = bound.kv_runs.size();
    int64_t num_keys = 0;
    for (const auto& piece : keys.pieces())
      keys.for_each_run(piece, op.branch, head, rows.segment(segment),
                        [&](const TokenRange& k, int64_t) {
                          const auto place = keys.locate(piece, batch, head, k);
                          const std::byte* const at = kv_base + piece.byte_offset + place.row * row;
                          bound.kv_runs.push_back({.k = at,
                                                   .v = at + piece.rows * row,
                                                   .row_stride = place.step * p.head_dim,
                                                   .rows = k.count,
                                                   .first_token = k.first,
                                                   .token_step = k.stride});
                          num_keys += k.count;
                        });
    const auto& q_piece = queries.pieces()[piece_index];
    const auto& out_piece = out.pieces()[piece_index];
    for (int64_t at = 0; at < run.count; at += kRowsPerTask) {
      const TokenRange part{run[at], run.stride, std::min(kRowsPerTask, run.count - at)};
      const auto q = queries.locate(q_piece, batch, head, part);
      bound.attends.push_back(
          {.q = {.q = q_base + q_piece.byte_offset + q.row * row,
                 .row_stride = q.step * p.head_dim,
                 .rows = part.count,
                 .first_token = part.first,
                 .token_step = part.stride},
           .kv = {},
           .out = partial_at(op.into, out_piece, out.locate(out_piece, batch, head, part))});
      spans.push_back({begin, bound.kv_runs.size() - begin});
      pairs += double(part.count) * double(num_keys);
    }
  };
  const HeadRange heads = op.q.rows.heads;
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t head = heads.first; head < heads.first + heads.count; ++head)
      for (size_t i = 0; i < queries.pieces().size(); ++i)
        queries.for_each_run(queries.pieces()[i], op.branch, head, op.queries,
                             [&](const TokenRange& run, int64_t segment) {
                               add_tasks(batch, head, i, run, segment);
                             });
  for (size_t i = 0; i < spans.size(); ++i)
    bound.attends[i].kv =
        std::span<const KvRun>(bound.kv_runs).subspan(spans[i].begin, spans[i].count);

  const double flops_per_task =
      4.0 * double(p.head_dim) * pairs / std::max<double>(1, double(spans.size()));
  bound.tasks_per_poke = std::max<int64_t>(
      threads_, int64_t(kFlopsPerPoke * threads_ / std::max(flops_per_task, 1.0)));
}

void ProgramExecutor::bind_merge(const Merge& op, BoundOp& bound) {
  const RowMap from(sharded_, TensorKind::kPartial, op.from.rows),
      into(sharded_, TensorKind::kPartial, op.into.rows);
  const int branch = std::max(op.from.rows.branch, 0);
  const HeadRange heads = op.from.rows.heads;
  check(from.pieces().size() == into.pieces().size(), "a merge of different owners");
  // Every row of a dense partial is one run; that of a branch has one run per segment.
  const auto for_each_run = [&](const RowMap::Piece& piece, int64_t head, auto fn) {
    if (op.from.rows.branch == kEveryRow) {
      if (!piece.tokens.empty()) fn(TokenRange{piece.tokens.begin, 1, piece.tokens.length()});
    } else {
      from.for_each_run(piece, branch, head, piece.tokens,
                        [&](const TokenRange& run, int64_t) { fn(run); });
    }
  };
  for (int64_t batch = 0; batch < sharded_.problem.batch; ++batch)
    for (int64_t head = heads.first; head < heads.first + heads.count; ++head)
      for (size_t i = 0; i < from.pieces().size(); ++i) {
        const auto &a = from.pieces()[i], &b = into.pieces()[i];
        for_each_run(a, head, [&](const TokenRange& run) {
          bound.merges.push_back({.from = partial_at(op.from, a, from.locate(a, batch, head, run)),
                                  .into = partial_at(op.into, b, into.locate(b, batch, head, run)),
                                  .rows = run.count});
        });
      }
}

void ProgramExecutor::bind_select(const Select& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const RowMap from(sharded_, TensorKind::kKeyValue, op.from.rows),
      into(sharded_, TensorKind::kKeyValue, op.into.rows);
  const KvStreams streams = kv_streams(p, sharded_.pattern, op.into.rows.branch,
                                       op.into.rows.heads.first, op.into.rows.heads.count);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);
  const auto &a = from.pieces().at(0), &b = into.pieces().at(0);
  std::byte* const source = slots_[size_t(op.from.slot)].data() + a.byte_offset;
  std::byte* const target = slots_[size_t(op.into.slot)].data() + b.byte_offset;
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (size_t s = 0; s < streams.streams.size(); ++s) {
      const auto reader = std::find(streams.of_head.begin(), streams.of_head.end(), int(s));
      const int64_t head = op.into.rows.heads.first + (reader - streams.of_head.begin());
      into.for_each_run(
          b, op.into.rows.branch, head, b.tokens, [&](const TokenRange& run, int64_t) {
            const auto x = from.locate(a, batch, head, run), y = into.locate(b, batch, head, run);
            for (const bool values : {false, true})
              bound.packs.push_back({.from = source + (x.row + (values ? a.rows : 0)) * row,
                                     .into = target + (y.row + (values ? b.rows : 0)) * row,
                                     .from_stride = x.step * p.head_dim,
                                     .into_stride = y.step * p.head_dim,
                                     .rows = run.count});
          });
    }
}

void ProgramExecutor::bind_reset(const Reset& op, BoundOp& bound) {
  const RowMap map(sharded_, TensorKind::kPartial, op.into.rows);
  for (const auto& piece : map.pieces()) {
    auto* const o =
        reinterpret_cast<float*>(slots_[size_t(op.into.slot)].data() + piece.byte_offset);
    const size_t values = size_t(piece.rows * sharded_.problem.head_dim);
    bound.zeros.push_back({o, values});
    bound.absent.push_back({o + values, size_t(piece.rows)});
  }
}

void ProgramExecutor::fill_inputs() {
  const AttentionProblem& p = sharded_.problem;
  for (TaggedBuffer& slot : slots_)
    std::memset(slot.data(), 0xFF, size_t(slot.size()));  // NaN in fp32 and bf16
  const TokenInterval mine = shard();
  const auto fill = [&](Tensor tensor, int64_t heads, std::byte* at) {
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t t = mine.begin; t < mine.end; ++t)
        for (int64_t head = 0; head < heads; ++head, at += p.head_dim * dtype_bytes(p.dtype)) {
          const RowKey key{p.seed, tensor, batch * p.seq_len + t, head};
          if (p.dtype == DType::kFloat32)
            generate_row(key, p.head_dim, reinterpret_cast<float*>(at));
          else
            generate_row(key, p.head_dim, reinterpret_cast<uint16_t*>(at));
        }
  };
  std::byte* const kv = slots_[kKvSlot].data();
  fill(Tensor::kQuery, p.num_heads, slots_[kQuerySlot].data());
  fill(Tensor::kKey, p.num_kv_heads, kv);
  fill(Tensor::kValue, p.num_kv_heads, kv + slots_[kKvSlot].size() / 2);
}

double ProgramExecutor::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ProgramExecutor::run(RunMode mode) {
  start_ = std::chrono::steady_clock::now();
  waited_s_ = 0;
  in_flight_.clear();
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    times_[i] = {};
    const bool communicates = is_communication(program_.ops[i]);
    if (mode == (communicates ? RunMode::kComputeOnly : RunMode::kCommunicationOnly)) continue;
    const double before = elapsed();
    for (OpId a : program_.ops[i].after) wait_for(size_t(a));
    times_[i].begin_s = elapsed();
    if (communicates) {
      post(i);
      waited_s_ += elapsed() - before;
    } else {
      waited_s_ += times_[i].begin_s - before;
      execute(i);
      times_[i].end_s = elapsed();
    }
  }
  const double before = elapsed();
  while (!in_flight_.empty()) wait_for(in_flight_.front());
  waited_s_ += elapsed() - before;
}

void ProgramExecutor::post(size_t op) {
  BoundOp& b = bound_[op];
  std::visit(Overload{
                 [&](const Send&) { b.request = comm_.isend(b.peer, b.own); },
                 [&](const Recv&) { b.request = comm_.irecv(b.peer, b.into); },
                 [&](const AllGather&) {
                   b.request = comm_.iall_gather(b.group, b.own, b.into, b.counts);
                 },
                 [](const auto&) {},
             },
             program_.ops[op].what);
  in_flight_.push_back(op);
}

void ProgramExecutor::wait_for(size_t op) {
  const auto it = std::find(in_flight_.begin(), in_flight_.end(), op);
  if (it == in_flight_.end()) return;
  comm_.wait(bound_[op].request);
  times_[op].end_s = elapsed();
  in_flight_.erase(it);
}

void ProgramExecutor::poke() {
  std::erase_if(in_flight_, [&](size_t op) {
    if (!comm_.test(bound_[op].request)) return false;
    times_[op].end_s = elapsed();
    return true;
  });
}

void ProgramExecutor::execute(size_t op) {
  BoundOp& b = bound_[op];
  std::visit(Overload{
                 [&](const Select&) { kernel_.pack(b.packs, options_, threads_); },
                 [&](const Attend&) {
                   const std::span<const AttendTask> all = b.attends;
                   for (size_t at = 0; at < all.size();) {
                     const size_t n = in_flight_.empty()
                                          ? all.size() - at
                                          : std::min(size_t(b.tasks_per_poke), all.size() - at);
                     kernel_.attend(all.subspan(at, n), options_, threads_, workspace_.bytes());
                     at += n;
                     if (!in_flight_.empty()) poke();
                   }
                 },
                 [&](const Merge&) { kernel_.merge(b.merges, merge_rule_, options_, threads_); },
                 [&](const Reset&) {
                   for (auto values : b.zeros) std::fill(values.begin(), values.end(), 0.0f);
                   for (auto values : b.absent)
                     std::fill(values.begin(), values.end(),
                               -std::numeric_limits<float>::infinity());
                 },
                 [](const auto&) {},
             },
             program_.ops[op].what);
}

RunPhases ProgramExecutor::phases() const {
  RunPhases phases{.exposed_communication_s = waited_s_};
  for (size_t i = 0; i < times_.size(); ++i) {
    if (is_communication(program_.ops[i])) continue;
    (std::holds_alternative<Merge>(program_.ops[i].what) ? phases.merge_s : phases.compute_s) +=
        times_[i].end_s - times_[i].begin_s;
  }
  return phases;
}

std::span<const float> ProgramExecutor::output_row(int64_t batch, int64_t head,
                                                   int64_t token) const {
  const AttentionProblem& p = sharded_.problem;
  const int64_t row = ((batch * shard().length()) + token - shard().begin) * p.num_heads + head;
  return {reinterpret_cast<const float*>(slots_[kOutputSlot].data()) + row * p.head_dim,
          size_t(p.head_dim)};
}

float ProgramExecutor::output_lse(int64_t batch, int64_t head, int64_t token) const {
  const AttentionProblem& p = sharded_.problem;
  const int64_t rows = p.batch * shard().length() * p.num_heads;
  const int64_t row = ((batch * shard().length()) + token - shard().begin) * p.num_heads + head;
  return reinterpret_cast<const float*>(slots_[kOutputSlot].data())[rows * p.head_dim + row];
}

int64_t ProgramExecutor::count_nan() const {
  const std::span<const float> values{reinterpret_cast<const float*>(slots_[kOutputSlot].data()),
                                      size_t(slots_[kOutputSlot].size()) / sizeof(float)};
  return std::count_if(values.begin(), values.end(), [](float x) { return std::isnan(x); });
}

}  // namespace longnet
