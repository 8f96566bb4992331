// gpu_check: attention, every kernel and tile shape.
#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <utility>

#include "core/check.h"
#include "execute/tolerances.h"
#include "gpu/check.h"
#include "gpu/support.h"
#include "kernels/attention_kernel.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/strided_view.h"

namespace longnet::gpu {
namespace {

struct Rows {
  int64_t rows = 0, first_token = 0, token_step = 1, heads_apart = 1;
};
struct AttendSpec {
  int64_t head_dim = 64;
  Rows q;
  std::vector<Rows> kv;
  bool causal = false;
  int exponent = 0;  // Q and K are multiplied by 2^exponent
};

// Inputs of an attend on the device, their values in fp32 on the host, and the output.
class AttendSetup {
 public:
  explicit AttendSetup(const AttendSpec& spec) : spec_(spec) {
    q_ = add(spec.q, Tensor::kQuery);
    runs_.reserve(spec.kv.size());
    host_runs_.reserve(spec.kv.size());
    for (const Rows& rows : spec.kv) {
      const Copy k = add(rows, Tensor::kKey), v = add(rows, Tensor::kValue);
      runs_.push_back({k.device, v.device, k.stride, rows.rows, rows.first_token, rows.token_step});
      host_runs_.push_back(
          {k.host, v.host, k.stride, rows.rows, rows.first_token, rows.token_step});
    }
    const int64_t rows = spec.q.rows, d = spec.head_dim;
    out_ = DeviceBuffer(ledger_, "out", 4 * rows * (d + 3));
    out_host_.resize(size_t(rows * (d + 3)));
  }
  // The output is NaN until the task has run.
  AttendTask device_task(const Stream& stream) {
    stream.fill(out_.data(), 0xFF, out_.size());
    return task(q_.device, runs_, reinterpret_cast<float*>(out_.data()));
  }
  void expect(const DeviceKernel& kernel, Outcome& out, const std::string& name,
              bool merge = false) {
    note_work(concat(name, " d ", spec_.head_dim, " rows ", spec_.q.rows, " runs ", spec_.kv.size(),
                     " causal ", spec_.causal));
    guarded(out, name, [&] {
      const Stream stream;
      const AttendGrid grid{device_task(stream)};
      if (merge) prepare_merge(stream, grid.task);
      const auto attend = kernel.prepare({&grid, 1}, options(merge), ledger_);
      attend.launch(stream);
      stream.synchronize();
      compare(out, name, merge);
    });
  }
  // O of 16 bits is, bit for bit, that of 32 bits rounded; LSE is the same. Merged where causal.
  void expect_rounded(const DeviceKernel& kernel, Outcome& out, const std::string& name) {
    const bool merge = spec_.causal;
    const int64_t d = spec_.head_dim, rows = spec_.q.rows, stride = d + 2;
    const Stream stream;
    const auto run = [&](DType dtype) {
      AttendGrid grid{device_task(stream)};
      DeviceAttendOptions how = options(merge);
      how.output_dtype = dtype;
      if (merge) prepare_merge(stream, grid.task);
      if (dtype == DType::kBFloat16) {
        grid.task.out.o_stride = stride / 2;
        const float ones = std::bit_cast<float>(0x3F803F80);
        if (merge) fill_floats(grid.task.out.o, rows * stride / 2, ones, stream);
      }
      const auto attend = kernel.prepare({&grid, 1}, how, ledger_);
      attend.launch(stream);
      stream.synchronize();
      return download<float>(out_.data(), rows * (stride + 1));
    };
    const auto wide = run(DType::kFloat32), narrow = run(DType::kBFloat16);
    const auto* const found = reinterpret_cast<const uint16_t*>(narrow.data());
    int64_t differing = 0;
    for (int64_t i = 0; i < rows * stride; ++i) {
      if (i % stride < d)
        differing += found[i] != bf16_bits(wide[size_t(i)]);
      else if (!merge)
        differing += found[i] != 0xFFFF;  // nothing is written between rows
    }
    for (int64_t i = rows * stride; i < rows * (stride + 1); ++i)
      differing += !(narrow[size_t(i)] == wide[size_t(i)]);
    out.expect(differing == 0, concat(name, " d ", d, " rows ", rows, ": ", differing,
                                      " values are not the rounded"));
  }
  // One run after the other, merged by the kernel, and launches between them that see no key.
  void expect_in_pieces(const DeviceKernel& kernel, Outcome& out, const std::string& name) {
    guarded(out, name, [&] {
      const Stream stream;
      AttendGrid grid{device_task(stream)};
      bool merge = false;
      for (const KvRun& run : runs_)
        for (const auto piece : {std::span<const KvRun>(), std::span<const KvRun>(&run, 1)}) {
          grid.task.kv = piece;
          const auto attend =
              kernel.prepare({&grid, 1}, options(std::exchange(merge, true)), ledger_);
          attend.launch(stream);
          stream.synchronize();
        }
      compare(out, name, false);
    });
  }
  void compare(Outcome& out, const std::string& name, bool merge);

  DeviceAttendOptions options(bool merge) const {
    return {.head_dim = spec_.head_dim, .causal = spec_.causal, .merge = merge};
  }

 private:
  template <class F>
  void guarded(Outcome& out, const std::string& name, F body) {
    try {
      body();
    } catch (const Error& e) {
      out.expect(false,
                 concat(name, " d ", spec_.head_dim, " rows ", spec_.q.rows, ": ", e.what()));
      Stream().synchronize();  // throws again when the device is lost
    }
  }
  struct Copy {
    const void *device, *host;
    int64_t stride;
  };
  Copy add(const Rows& rows, Tensor tensor) {
    const int64_t d = spec_.head_dim, stride = rows.heads_apart * d;
    auto& buffer =
        buffers_.emplace_back(ledger_, "rows", 2 * std::max<int64_t>(1, rows.rows) * stride);
    const Stream stream;
    stream.fill(buffer.data(), 0xFF, buffer.size());  // NaN between the rows
    const FillRows task{.tensor = tensor,
                        .head = 1,
                        .first_token = rows.first_token,
                        .token_step = rows.token_step,
                        .rows = rows.rows,
                        .out = buffer.data(),
                        .row_stride = stride};
    const Prepared fill = prepare_fill({&task, 1}, 3, d, DType::kBFloat16, ledger_);
    fill.launch(stream);
    stream.synchronize();
    auto all = download<uint16_t>(buffer.data(), buffer.size() / 2);
    if (spec_.exponent > 0 && tensor != Tensor::kValue) {
      for (uint16_t& bits : all)
        if ((bits & 0x7FFF) != 0 && bits != 0xFFFF) bits = uint16_t(bits + (spec_.exponent << 7));
      buffer.upload(all);
    }
    auto& floats = hosts_.emplace_back();
    for (const uint16_t bits : all) floats.push_back(bf16_value(bits));
    return {buffer.data(), floats.data(), stride};
  }
  AttendTask task(const void* q, const std::vector<KvRun>& runs, float* o) const {
    const int64_t d = spec_.head_dim, rows = spec_.q.rows;
    return {.q = {q, q_.stride, rows, spec_.q.first_token, spec_.q.token_step},
            .kv = runs,
            .out = {o, o + rows * (d + 2), d + 2, 1}};
  }
  // A partial with O = 1 and LSE = 0, so that the merge has a closed form.
  void prepare_merge(const Stream& stream, const AttendTask& t) const {
    fill_floats(t.out.o, spec_.q.rows * t.out.o_stride, 1.0f, stream);
    fill_floats(t.out.lse, spec_.q.rows, 0.0f, stream);
  }
  AttendSpec spec_;
  MemoryLedger ledger_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::vector<float>> hosts_;
  Copy q_{};
  std::vector<KvRun> runs_, host_runs_;
  DeviceBuffer out_;
  std::vector<float> out_host_;
  bool reference_done_ = false;
};

void AttendSetup::compare(Outcome& out, const std::string& name, bool merge) {
  const int64_t d = spec_.head_dim, rows = spec_.q.rows;
  const AttendGrid grid{task(q_.host, host_runs_, out_host_.data())};
  const AttendTask& wanted = grid.task;
  if (!std::exchange(reference_done_, true))
    make_reference_kernel()->attend({&grid, 1}, {.head_dim = d, .causal = spec_.causal}, 1, {});
  const auto got = download<float>(out_.data(), out_.size() / 4);
  double difference = 0, norm = 0, worst_lse = 0;
  bool clean = true;
  for (int64_t i = 0; i < rows; ++i) {
    double lse = wanted.out.lse[i], keep = 0;
    if (merge) {
      const double total = std::log(std::exp(lse) + 1);
      keep = std::exp(-total);
      lse = total;
    }
    const double found = got[size_t(rows * (d + 2) + i)];
    if (found != lse)
      worst_lse =
          std::max(worst_lse,
                   std::isnan(found) ? 1e9 : std::abs(found - lse) / std::max(1.0, std::abs(lse)));
    for (int64_t c = 0; c < d; ++c) {
      double o = wanted.out.o[i * (d + 2) + c];
      if (merge) o = (1 - keep) * o + keep;
      const double off = double(got[size_t(i * (d + 2) + c)]) - o;
      difference += std::isnan(off) ? 1e9 : off * off;
      norm += o * o;
    }
    for (int64_t c = d; c < d + 2; ++c)  // nothing is written between rows
      clean = clean && (std::isnan(got[size_t(i * (d + 2) + c)]) || merge);
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  out.worst = std::max(out.worst, error);
  out.expect(
      error <= kRoundedPowersTolerance && worst_lse <= kRoundedPowersLseTolerance && clean,
      concat(name, " d ", d, " rows ", rows, " runs ", spec_.kv.size(), " causal ", spec_.causal,
             ": rel_l2 ", error, ", lse ", worst_lse, clean ? "" : ", wrote between rows"));
}

// Several tasks in one launch, two of them with few keys or none; again and again, for what the
// emulated device may do in another order.
void check_many_tasks(const DeviceKernel& kernel, Outcome& out, const std::string& name) {
  std::deque<AttendSetup> setups;
  for (const int64_t keys : {300, 0, 130, 5, 260})
    setups.emplace_back(AttendSpec{.q = {.rows = 210, .first_token = 100},
                                   .kv = {{.rows = keys, .heads_apart = 3}},
                                   .causal = true});
  for (int launch = 0; launch < 4; ++launch) {
    const Stream stream;
    std::vector<AttendGrid> grids;
    for (AttendSetup& setup : setups) grids.push_back({setup.device_task(stream)});
    MemoryLedger ledger;
    const auto attend = kernel.prepare(grids, setups.front().options(false), ledger);
    attend.launch(stream);
    stream.synchronize();
    for (AttendSetup& setup : setups) setup.compare(out, name, false);
  }
}

// Keys in two runs, for launches that merge the second into the first.
AttendSpec two_halves(bool causal) {
  return {.q = {.rows = 200, .first_token = 60},
          .kv = {{.rows = 100}, {.rows = 190, .first_token = 100}},
          .causal = causal};
}

// Edges of tiles of 64 and of 128 rows and keys: each once where `small`, else all pairs.
std::vector<std::pair<int64_t, int64_t>> rows_and_keys(bool small) {
  if (small) return {{1, 65}, {128, 64}, {131, 0}, {131, 1}, {131, 300}};
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const int64_t rows : {1, 17, 128, 131})
    for (const int64_t keys : {0, 1, 63, 64, 65, 300}) pairs.emplace_back(rows, keys);
  return pairs;
}

// Positions that are far apart, scores that only one key survives, runs in any order.
void add_causal_specs(std::vector<AttendSpec>& specs) {
  const Rows far{.rows = 130, .first_token = int64_t{1} << 39, .token_step = int64_t{1} << 28};
  specs.push_back({.q = far, .kv = {far}, .causal = true});
  specs.push_back({.q = {.rows = 64}, .kv = {{.rows = 300}}, .causal = true, .exponent = 8});
  // Neighbouring warpgroups see several key tiles more; the last one has no rows.
  for (const int64_t d : {64, 128})
    specs.push_back({.head_dim = d,
                     .q = {.rows = 320, .first_token = 100, .token_step = 7},
                     .kv = {{.rows = 2400}},
                     .causal = true});
  // Maxima that grow more than 256-fold from one key tile to the next.
  specs.push_back({.q = {.rows = 64, .first_token = 250},
                   .kv = {{.rows = 300}},
                   .causal = true,
                   .exponent = 3});
  const Rows q{.rows = 200, .first_token = 50, .token_step = 2}, early{.rows = 70};
  const Rows late{.rows = 300, .first_token = 150}, never{.rows = 30, .first_token = 100000};
  for (const auto& kv :
       std::vector<std::vector<Rows>>{{never}, {never, early}, {early, late, never}})
    specs.push_back({.q = q, .kv = kv, .causal = true});
}

std::vector<AttendSpec> attend_specs(bool small) {
  std::vector<AttendSpec> specs;
  for (const bool causal : {false, true}) {
    for (const int64_t d : {8, 24, 48, 64, 80, 96, 128, 136, 256})
      specs.push_back({.head_dim = d,
                       .q = {.rows = 70, .first_token = 30},
                       .kv = {{.rows = 100}},
                       .causal = causal});
    for (const int64_t d : {64, 128}) {
      for (const auto& [rows, keys] : rows_and_keys(small))
        specs.push_back({.head_dim = d,
                         .q = {.rows = rows, .first_token = keys / 2, .heads_apart = 12},
                         .kv = {{.rows = keys, .heads_apart = 7}},
                         .causal = causal});
      std::vector<Rows> gathered;  // unequal pieces of several ranks, 6 tokens apart
      for (int64_t rank = 0, token = 3; rank < 7; ++rank) {
        gathered.push_back(
            {.rows = rank == 3 ? 0 : 40 + rank % 2, .first_token = token, .token_step = 6});
        token += 6 * gathered.back().rows;
      }
      specs.push_back({.head_dim = d,
                       .q = {.rows = 200, .first_token = 3, .token_step = 6},
                       .kv = gathered,
                       .causal = causal});
      specs.push_back({.head_dim = d,
                       .q = {.rows = 150, .first_token = 40},
                       .kv = {{.rows = 90, .first_token = 120}, {.rows = 100}},
                       .causal = causal});
      if (small) continue;
      specs.push_back({.head_dim = d,
                       .q = {.rows = 2048, .token_step = 4, .heads_apart = 48},
                       .kv = {{.rows = 2048, .token_step = 4, .heads_apart = 48}},
                       .causal = causal});
      specs.push_back({.head_dim = d,
                       .q = {.rows = 333, .first_token = 5000},
                       .kv = {{.rows = 7777}},
                       .causal = causal});
    }
  }
  add_causal_specs(specs);
  return specs;
}

}  // namespace

void check_attend(Outcome& out, bool small) {
  for (const AttendSpec& spec : attend_specs(small)) {
    AttendSetup setup(spec);
    for (const std::string& shape : cuda_kernel_shapes(spec.head_dim))
      setup.expect(*make_cuda_kernel(shape), out, "cuda/" + shape);
    setup.expect(*make_cuda_kernel(), out, "cuda fused merge", true);
    if (!small || spec.q.rows == 70)
      setup.expect_rounded(*make_cuda_kernel(), out, "cuda, O of 16 bits");
    if (!small || spec.kv.size() > 1)
      setup.expect(*make_gather_kernel(make_cuda_kernel()), out, "gather");
  }
  for (const bool causal : {false, true})
    AttendSetup(two_halves(causal)).expect_in_pieces(*make_cuda_kernel(), out, "cuda in pieces");
  check_many_tasks(*make_cuda_kernel(), out, "cuda, many tasks");
}

void check_sm90a(Outcome& out, bool small) {
  if (left_out(why_sm90a_absent())) return;
  for (const AttendSpec& spec : attend_specs(small)) {
    if (spec.head_dim > 128) continue;
    AttendSetup setup(spec);
    for (const std::string& shape : sm90a_kernel_shapes(spec.head_dim))
      setup.expect(*make_sm90a_kernel(shape), out, "cuda_sm90a/" + shape);
    setup.expect(*make_sm90a_kernel(), out, "cuda_sm90a fused merge", true);
    if (!small || spec.q.rows == 70 || spec.q.rows == 200)
      setup.expect_rounded(*make_sm90a_kernel(), out, "cuda_sm90a, O of 16 bits");
  }
  for (const bool causal : {false, true})
    AttendSetup(two_halves(causal))
        .expect_in_pieces(*make_sm90a_kernel(), out, "cuda_sm90a in pieces");
  check_many_tasks(*make_sm90a_kernel(), out, "cuda_sm90a, many tasks");
}

void check_cudnn(Outcome& out, bool) {
  if (left_out(why_cudnn_absent())) return;
  // A plan takes the library 0.25 to 0.6 s: no pairs of edges of tiles, which are the own kernels'.
  for (const AttendSpec& spec : attend_specs(true)) {
    // The library's masks are triangles of the view.
    if (spec.head_dim > 128 || spec.q.token_step != spec.kv.front().token_step) continue;
    AttendSetup(spec).expect(*make_cudnn_kernel(), out, "cudnn");
  }
}

}  // namespace longnet::gpu
