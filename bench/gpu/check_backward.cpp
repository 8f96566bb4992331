// gpu_check: the backward pass of attention, and the statistics of its rows.
#include <algorithm>
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

namespace longnet::gpu {
namespace {

struct Keys {
  int64_t rows = 0, first_token = 0, token_step = 1, heads_apart = 1;
};
// `heads` query heads over one K/V head, `segments` times behind each other.
struct BackwardSpec {
  int64_t head_dim = 64, heads = 1, segments = 1;
  int64_t rows = 70, first_token = 0, token_step = 1, heads_apart = 2;
  std::vector<Keys> kv;
  bool causal = false;
  float output_scale = 1;
};

std::string to_string(const BackwardSpec& s) {
  return concat("d ", s.head_dim, " heads ", s.heads, " segments ", s.segments, " rows ", s.rows,
                " runs ", s.kv.size(), " causal ", s.causal);
}

// Inputs of a backward pass on the device and, as fp32 values, on the host.
class BackwardSetup {
 public:
  explicit BackwardSetup(const BackwardSpec& spec) : spec_(spec) {
    for (const Keys& run : spec.kv) {
      key_begin_.push_back(keys_);
      keys_ += 2 * run.rows * run.heads_apart * spec.head_dim;
    }
    q_ = fill(spec.segments * segment(), [&](std::byte* at, std::vector<FillRows>& all) {
      add_queries(Tensor::kQuery, at, all);
    });
    grad_out_ = fill(spec.segments * segment(), [&](std::byte* at, std::vector<FillRows>& all) {
      add_queries(Tensor::kGradOut, at, all);
    });
    kv_ = fill(spec.segments * keys_,
               [&](std::byte* at, std::vector<FillRows>& all) { add_keys(at, all); });
    make_statistics();
    const BackwardGrid grid = on_host();
    make_reference_kernel()->attend_backward({&grid, 1}, host_options(), 1, {});
  }

  void expect(const DeviceKernel& kernel, Outcome& out, const std::string& name) {
    note_work(concat(name, " ", to_string(spec_)));
    try {
      const auto first = run(kernel), again = run(kernel);
      out.expect(first == again,
                 concat(name, " ", to_string(spec_), ": other bits when run again"));
      compare(first, out, concat(name, " ", to_string(spec_)));
    } catch (const Error& e) {
      out.expect(false, concat(name, " ", to_string(spec_), ": ", e.what()));
      Stream().synchronize();  // throws again when the device is lost
    }
  }

 private:
  static constexpr float kBefore = 0.25f;  // gradients that are there before
  struct Copy {
    std::byte* device = nullptr;
    std::vector<float> host;
  };
  using Gradients = std::pair<std::vector<float>, std::vector<float>>;  // dQ; dK and dV

  int64_t stride() const { return spec_.heads_apart * spec_.head_dim; }
  int64_t segment() const { return spec_.rows * stride(); }  // elements of Q
  int64_t statistics_floats() const { return 2 * spec_.segments * spec_.rows * spec_.heads_apart; }

  template <class Add>
  Copy fill(int64_t elements, Add add) {
    auto& buffer = buffers_.emplace_back(ledger_, "rows", 2 * std::max<int64_t>(8, elements));
    const Stream stream;
    stream.fill(buffer.data(), 0xFF, buffer.size());  // NaN between the rows
    std::vector<FillRows> rows;
    add(buffer.data(), rows);
    const Prepared work = prepare_fill(rows, 3, spec_.head_dim, DType::kBFloat16, ledger_);
    work.launch(stream);
    stream.synchronize();
    Copy copy{buffer.data(), {}};
    for (const uint16_t bits : download<uint16_t>(buffer.data(), buffer.size() / 2))
      copy.host.push_back(bf16_value(bits));
    return copy;
  }
  void add_queries(Tensor tensor, std::byte* at, std::vector<FillRows>& all) const {
    for (int64_t s = 0; s < spec_.segments; ++s)
      for (int64_t head = 0; head < spec_.heads; ++head)
        all.push_back({.tensor = tensor,
                       .head = head,
                       .first_token = 1000 * s,
                       .rows = spec_.rows,
                       .out = at + 2 * (s * segment() + head * spec_.head_dim),
                       .row_stride = stride()});
  }
  void add_keys(std::byte* at, std::vector<FillRows>& all) const {
    for (int64_t s = 0; s < spec_.segments; ++s)
      for (size_t r = 0; r < spec_.kv.size(); ++r)
        for (const Tensor tensor : {Tensor::kKey, Tensor::kValue}) {
          const Keys& run = spec_.kv[r];
          const int64_t row_stride = run.heads_apart * spec_.head_dim;
          const int64_t behind = tensor == Tensor::kValue ? run.rows * row_stride : 0;
          all.push_back({.tensor = tensor,
                         .head = int64_t(r),
                         .first_token = 1000 * s,
                         .rows = run.rows,
                         .out = at + 2 * (s * keys_ + key_begin_[r] + behind),
                         .row_stride = row_stride});
        }
  }

  struct Addresses {
    const void *q, *grad_out, *kv;
    float *grad_q, *grad_kv;
    const float* statistics;
    int64_t element_bytes;
  };
  // `runs` are kept by the caller.
  BackwardGrid grid_of(const Addresses& at, std::vector<KvRun>& runs) const {
    const int64_t e = at.element_bytes, d = spec_.head_dim;
    runs.clear();
    for (size_t r = 0; r < spec_.kv.size(); ++r) {
      const Keys& run = spec_.kv[r];
      const auto* const k = static_cast<const std::byte*>(at.kv) + e * key_begin_[r];
      runs.push_back({.k = k,
                      .v = k + e * run.rows * run.heads_apart * d,
                      .row_stride = run.heads_apart * d,
                      .rows = run.rows,
                      .first_token = run.first_token,
                      .token_step = run.token_step,
                      .step_bytes = {0, keys_ * e}});
    }
    return {
        .attend = {.task = {.q = {at.q, stride(), spec_.rows, spec_.first_token, spec_.token_step},
                            .kv = runs,
                            .out = {}},
                   .count = {spec_.heads, spec_.segments, 1, 1},
                   .q_step_bytes = {d * e, segment() * e}},
        .grad_out = at.grad_out,
        .grad_q = at.grad_q,
        .statistics = at.statistics,
        .statistics_stride = 2 * spec_.heads_apart,
        .statistics_step = {2, 2 * spec_.rows * spec_.heads_apart},
        .keys = at.kv,
        .grad_keys = at.grad_kv};
  }
  BackwardGrid on_host() {
    expected_ = {std::vector<float>(q_.host.size(), kBefore),
                 std::vector<float>(kv_.host.size(), kBefore)};
    return grid_of({q_.host.data(), grad_out_.host.data(), kv_.host.data(), expected_.first.data(),
                    expected_.second.data(), statistics_host_.data(), 4},
                   host_runs_);
  }
  AttendOptions host_options() const {
    return {.head_dim = spec_.head_dim, .causal = spec_.causal, .output_scale = spec_.output_scale};
  }

  // O and LSE by the reference; L and delta by the device, which the host then has too.
  void make_statistics() {
    const int64_t d = spec_.head_dim, heads_apart = spec_.heads_apart;
    const int64_t rows = spec_.segments * spec_.rows * heads_apart;
    std::vector<float> results(size_t(rows * (d + 1)));
    BackwardGrid grid = on_host();
    grid.attend.task.out = {results.data(), results.data() + rows * d, stride(), heads_apart};
    grid.attend.o_step = {d, segment()};
    grid.attend.lse_step = {1, spec_.rows * heads_apart};
    make_reference_kernel()->attend({&grid.attend, 1}, host_options(), 1, {});
    const DeviceBuffer& device_results = buffers_.emplace_back(ledger_, "rows", 4 * rows * (d + 1));
    buffers_.back().upload(results);
    statistics_ =
        &buffers_.emplace_back(ledger_, "rows", 4 * std::max<int64_t>(2, statistics_floats()));
    auto* const o = reinterpret_cast<float*>(device_results.data());
    std::vector<DeltaTask> tasks;
    for (int64_t head = 0; head < spec_.heads; ++head)
      tasks.push_back({.out = {o + head * d, o + rows * d + head, stride(), heads_apart},
                       .grad_out = grad_out_.device + 2 * head * d,
                       .statistics = reinterpret_cast<float*>(statistics_->data()) + 2 * head,
                       .grad_out_stride = stride(),
                       .statistics_stride = 2 * heads_apart,
                       .rows = spec_.segments * spec_.rows});
    const Stream stream;
    const Prepared delta = prepare_delta(tasks, d, ledger_);
    delta.launch(stream);
    stream.synchronize();
    statistics_host_ = download<float>(statistics_->data(), statistics_floats());
  }

  Gradients run(const DeviceKernel& kernel) {
    const Stream stream;
    const int64_t queries = std::ssize(q_.host), keys = std::ssize(kv_.host);
    const DeviceBuffer gradients(ledger_, "gradients", 4 * (queries + keys));
    auto* const grad_q = reinterpret_cast<float*>(gradients.data());
    fill_floats(grad_q, queries + keys, kBefore, stream);
    std::vector<KvRun> runs;
    const BackwardGrid grid =
        grid_of({q_.device, grad_out_.device, kv_.device, grad_q, grad_q + queries,
                 reinterpret_cast<const float*>(statistics_->data()), 2},
                runs);
    const Prepared backward = kernel.prepare_backward(
        {&grid, 1},
        {.head_dim = spec_.head_dim, .causal = spec_.causal, .output_scale = spec_.output_scale},
        ledger_);
    backward.launch(stream);
    stream.synchronize();
    return {download<float>(grad_q, queries), download<float>(grad_q + queries, keys)};
  }

  // Errors of dQ, and of dK and dV; what lies between rows is untouched on both sides.
  void compare(const Gradients& got, Outcome& out, const std::string& name) const {
    double norm[2] = {}, error[2] = {};
    bool clean = true;
    for (const int of : {0, 1}) {
      const auto &a = of == 0 ? got.first : got.second,
                 &b = of == 0 ? expected_.first : expected_.second;
      const auto& row = of == 0 ? q_.host : kv_.host;
      for (size_t i = 0; i < b.size(); ++i) {
        const double off = double(a[i]) - b[i];
        error[of] += std::isnan(off) ? 1e9 : off * off;
        norm[of] += std::pow(double(b[i]) - kBefore, 2);
        clean = clean && (!std::isnan(row[i]) || a[i] == kBefore);
      }
    }
    const double least = 0.1 * std::sqrt(norm[0] + norm[1]);  // gradients may cancel
    double worst = 0;
    for (const int of : {0, 1})
      if (error[of] > 0)
        worst = std::max(worst, std::sqrt(error[of]) / (std::sqrt(norm[of]) + least));
    out.worst = std::max(out.worst, worst);
    out.expect(worst <= kRoundedGradientTolerance && clean,
               concat(name, ": rel_l2 ", worst, clean ? "" : ", wrote between rows"));
  }

  BackwardSpec spec_;
  MemoryLedger ledger_;
  std::deque<DeviceBuffer> buffers_;
  std::vector<int64_t> key_begin_;  // elements of each run, in a segment
  int64_t keys_ = 0;                // elements of a segment
  Copy q_, grad_out_, kv_;
  const DeviceBuffer* statistics_ = nullptr;
  std::vector<float> statistics_host_;
  std::vector<KvRun> host_runs_;
  Gradients expected_;
};

std::vector<BackwardSpec> backward_specs(bool small) {
  std::vector<BackwardSpec> specs;
  for (const bool causal : {false, true}) {
    for (const int64_t d : {8, 24, 64, 80, 128}) {
      // Three query heads of a K/V head; keys that no query sees, queries that see no key.
      specs.push_back({.head_dim = d,
                       .heads = d == 64 ? 3 : 1,
                       .rows = 70,
                       .first_token = causal ? -20 : 30,
                       .heads_apart = 3,
                       .kv = {{.rows = 100, .heads_apart = 2}},
                       .causal = causal});
      if (d < 64) continue;
      // Segments of more keys than a tile has, in pieces of several ranks at other positions.
      specs.push_back({.head_dim = d,
                       .segments = 2,
                       .rows = 37,
                       .first_token = 5,
                       .token_step = 4,
                       .kv = {{.rows = 33, .first_token = 3, .token_step = 3},
                              {.rows = 0},
                              {.rows = 1, .first_token = 102},
                              {.rows = 70, .first_token = 105, .token_step = 2}},
                       .causal = causal,
                       .output_scale = 0.5f});
      // Keys of two ranks at the queries' distances: triangles that cuDNN has.
      specs.push_back({.head_dim = d,
                       .rows = 37,
                       .first_token = 5,
                       .token_step = 4,
                       .kv = {{.rows = 33, .first_token = 5, .token_step = 4},
                              {.rows = 70, .first_token = 137, .token_step = 4}},
                       .causal = causal,
                       .output_scale = 0.5f});
      if (small) continue;
      for (const int64_t rows : {1, 64, 129, 2048})
        specs.push_back({.head_dim = d,
                         .heads = rows < 2048 ? 4 : 1,  // the reference takes a second a head
                         .rows = rows,
                         .heads_apart = 12,
                         .kv = {{.rows = rows, .heads_apart = 12}},
                         .causal = causal});
    }
    specs.push_back({.rows = 1, .kv = {{.rows = 1}}, .causal = causal});
    specs.push_back({.rows = 3, .kv = {}, .causal = causal});
  }
  return specs;
}

void check_own_backward(const DeviceKernel& kernel, const std::string& name, Outcome& out,
                        bool small) {
  for (const BackwardSpec& spec : backward_specs(small))
    BackwardSetup(spec).expect(kernel, out, name);
}

// Rows that are made for cuDNN: dO as it is, O whose product with dO is delta.
void check_sdpa_rows(Outcome& out) {
  constexpr int64_t kRows = 70, kDims = 24, kStride = 40;
  constexpr float kFactor = 0.5f;
  MemoryLedger ledger;
  const Stream stream;
  std::vector<uint16_t> from;
  std::vector<float> statistics;
  for (int64_t i = 0; i < kRows * kStride; ++i)
    from.push_back(uint16_t(0x3C00 + i * 37 % 1024 + (i % 3 == 0 ? 0x8000 : 0)));
  for (int64_t row = 0; row < kRows; ++row) {
    statistics.push_back(row == 4 ? -INFINITY : float(row));
    statistics.push_back(row % 9 == 5 ? 0.0f : float(std::sin(double(row))));
  }
  std::fill_n(from.begin() + 5 * kStride, kDims, uint16_t{0});  // dO = 0: delta is 0
  std::fill_n(from.begin() + 7 * kStride + 1, kDims - 1, uint16_t{0});
  DeviceBuffer dense(ledger, "rows", 2 * kRows * kDims * 2), lse(ledger, "lse", kRows * 4);
  DeviceBuffer from_buffer(ledger, "rows", int64_t(from.size()) * 2);
  DeviceBuffer statistics_buffer(ledger, "rows", int64_t(statistics.size()) * 4);
  const SdpaRowsTask task{.grad_out = from_buffer.upload(from),
                          .statistics = statistics_buffer.upload(statistics),
                          .grad_out_stride = kStride,
                          .statistics_stride = 2,
                          .into_grad_out = dense.data(),
                          .into_o = dense.data() + kRows * kDims * 2,
                          .into_lse = reinterpret_cast<float*>(lse.data()),
                          .rows = kRows};
  const Prepared work = prepare_sdpa_rows({&task, 1}, kDims, kFactor, ledger);
  work.launch(stream);
  stream.synchronize();
  const auto got = download<uint16_t>(dense.data(), 2 * kRows * kDims);
  const auto got_lse = download<float>(lse.data(), kRows);
  bool same = true;
  double worst = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < kDims; ++c) {
      const uint16_t bits = from[size_t(row * kStride + c)];
      same = same && got[size_t(row * kDims + c)] == bits;
      sum += double(bf16_value(bits)) * double(bf16_value(got[size_t((kRows + row) * kDims + c)]));
    }
    const double delta = double(statistics[size_t(2 * row + 1)]) * kFactor;
    const double least = row == 7 ? 1.0 / 256 : 1.0 / 32768;  // one column, or two
    worst = std::max(worst, std::abs(sum - delta) / (std::abs(delta) * least + 1e-12));
    same = same && got_lse[size_t(row)] == (row == 4 ? INFINITY : float(row));
  }
  out.expect(same && worst <= 1,
             concat("rows for cuDNN: dO . O is ", worst, " of its tolerance from delta"));
}

}  // namespace

void check_cudnn_backward(Outcome& out, bool small) {
  check_sdpa_rows(out);
  if (left_out(why_cudnn_absent())) return;
  for (const BackwardSpec& spec : backward_specs(small)) {
    // The library has triangles as masks, and no backward pass of one row or key.
    const bool one = spec.rows == 1 || std::ranges::count(spec.kv, 1, &Keys::rows) > 0;
    const bool triangles = std::ranges::all_of(
        spec.kv, [&](const Keys& run) { return run.token_step == spec.token_step; });
    if (one || (spec.causal && !triangles)) continue;
    BackwardSetup(spec).expect(*make_cudnn_kernel(), out, "cudnn");
  }
}

void check_backward(Outcome& out, bool small) {
  check_own_backward(*make_cuda_kernel(), "cuda", out, small);
}

void check_sm90a_backward(Outcome& out, bool small) {
  if (left_out(why_sm90a_absent())) return;
  check_own_backward(*make_sm90a_kernel(), "cuda_sm90a", out, small);
}

}  // namespace longnet::gpu
