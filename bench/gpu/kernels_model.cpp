#include <algorithm>
#include <cstdio>

#include "core/check.h"
#include "gpu/kernels_gemm.h"
#include "kernels/cuda/device_model.h"
#include "kernels/cuda/rows.h"
#include "schedule/program.h"

namespace longnet::gpu {
namespace {

constexpr int64_t kWidth = 768, kFfn = 3072, kHeadDim = 64;  // the paper's base model
constexpr DType kWide = DType::kFloat32, kNarrow = DType::kBFloat16;

struct Measured {
  const char* name;
  ModelTask task;
  double bytes = 0, flops = 0;  // one launch's: data read and written once; else FLOP
};

// Returns the op of the simulator's cost model whose price is this task's speed.
std::string_view op_of(const ModelTask& task) {
  using F = RowFunction;
  const auto name = [](F function) { return to_string(function); };
  return std::visit(
      Overload{[](const GemmTask&) { return std::string_view("gemm"); },
               [](const CrossEntropyTask&) { return std::string_view("cross_entropy"); },
               [](const UpdateTask&) { return std::string_view("update"); },
               [&](const EmbedTask&) { return name(F::kEmbed); },
               [&](const EmbedBackwardTask&) { return name(F::kEmbedBackward); },
               [&](const LayerNormTask&) { return name(F::kLayerNorm); },
               [&](const LayerNormBackwardTask&) { return name(F::kLayerNormBackward); },
               [&](const RowMomentsTask&) { return name(F::kRowMoments); },
               [&](const LayerNormSumsTask&) { return name(F::kLayerNormSums); },
               [&](const GeluTask&) { return name(F::kGelu); },
               [&](const GeluBackwardTask&) { return name(F::kGeluBackward); },
               [&](const RotateTask& t) {
                 return name(t.inverse_angle ? F::kRotateBackward : F::kRotate);
               },
               [&](const AddTask&) { return name(F::kAdd); },
               [&](const AddColumnsTask&) { return name(F::kAddColumns); },
               [&](const SumOfSquaresTask&) { return name(F::kSumOfSquares); }},
      task);
}

class ModelTimes {
 public:
  ModelTimes(int64_t tokens, bool quick, const std::function<bool()>& late,
             std::vector<Json>& points)
      : tokens_(tokens),
        // A vocabulary as those of GPT-2, padded; smaller where a test has few tokens.
        vocabulary_(std::min<int64_t>(50304, 16 * tokens)),
        quick_(quick),
        late_(late),
        points_(points) {
    std::vector<int32_t> tokens_of_text, bytes_of_text;
    for (int64_t i = 0; i < tokens_; ++i) {
      const uint32_t word = philox4x32_10({{uint32_t(i), 7, 7, 7}}, 3, 5).word[0];
      tokens_of_text.push_back(int32_t(word % uint32_t(vocabulary_)));
      bytes_of_text.push_back(int32_t(word % 3 == 0 ? 32 : word / 3 % 256));
    }
    token_list_ = DeviceBuffer(ledger_, "tokens", 4 * tokens_);
    byte_list_ = DeviceBuffer(ledger_, "tokens", 4 * tokens_);
    token_at_ = token_list_.upload(tokens_of_text), byte_at_ = byte_list_.upload(bytes_of_text);
  }

  void rows() {
    const Matrix x = narrow(x_, kFfn), y = narrow(y_, kFfn), grad = narrow(grad_, kFfn);
    const Matrix small_x = narrow(x_, kWidth), small_y = narrow(y_, kWidth),
                 small_grad = narrow(grad_, kWidth), o = wide(o_, kWidth);
    const double n = double(tokens_), ffn = n * kFfn, width = n * kWidth;
    const auto norm = [&](const Matrix& from, const Matrix& into) {
      return LayerNormTask{.x = from, .y = into, .gain = floats(0), .bias = floats(1)};
    };
    const auto norm_backward = [&](const Matrix& from, const Matrix& grad_y, const Matrix& into) {
      return LayerNormBackwardTask{.x = from,
                                   .grad_y = grad_y,
                                   .grad_x = into,
                                   .gain = floats(0),
                                   .grad_gain = floats(2),
                                   .grad_bias = floats(3)};
    };
    time({"gelu", GeluTask{x, y}, 4 * ffn});
    time({"gelu backward", GeluBackwardTask{x, grad, y}, 6 * ffn});
    time({"add", AddTask{small_x, small_y}, 6 * width});
    time({"add columns", AddColumnsTask{x, floats(2)}, 2 * ffn});
    time({"norm", norm(small_x, small_y), 4 * width});
    time({"norm of O", norm(o, small_y), 6 * width});
    time({"norm 4 D", norm(x, y), 4 * ffn});
    time({"norm backward", norm_backward(small_x, small_grad, small_y), 6 * width});
    time({"norm bwd of O", norm_backward(o, small_grad, small_y), 8 * width});
    time({"norm bwd 4 D", norm_backward(x, grad, y), 6 * ffn});
    for (const bool backward : {false, true})
      time({backward ? "rotate backward" : "rotate",
            RotateTask{.x = small_x,
                       .positions = {0, 1, tokens_},
                       .head_dim = kHeadDim,
                       .inverse_angle = backward},
            4 * width});
  }

  void embedding() {
    const DeviceBuffer table = normal_numbers(vocabulary_ * kWidth, kWide, ledger_);
    const Matrix all{table.data(), vocabulary_, kWidth, kWidth, kWide};
    const Matrix of_bytes = all.rows_from(0, std::min<int64_t>(256, vocabulary_));
    const Matrix x = narrow(x_, kWidth);
    const double n = double(tokens_) * kWidth;
    // Rows of the gradient's table that are read and written: each at most once.
    const auto touched = [&](const Matrix& of) {
      return 8 * std::min(n, double(of.rows) * kWidth);
    };
    time({"embed", EmbedTask{token_at_, all, x}, 6 * n});
    time({"embed backward", EmbedBackwardTask{token_at_, x, all}, 2 * n + touched(all)});
    time({"embed bwd bytes", EmbedBackwardTask{byte_at_, x, of_bytes}, 2 * n + touched(of_bytes)});
    loss(all);
  }

  void update() {
    const int64_t count = tokens_ * kWidth;
    const DeviceBuffer v(ledger_, "moment", 4 * count);
    const Stream stream;
    stream.fill(v.data(), 0, v.size());
    stream.synchronize();
    DeviceBuffer m = normal_numbers(count, kWide, ledger_),
                 g = normal_numbers(count, kWide, ledger_);
    DeviceBuffer schedule(ledger_, "schedule", 8), squares(ledger_, "squares", 16);
    const auto* const when = schedule.upload(std::vector<float>{10, 1e-3f});
    auto* const norm = squares.upload(std::vector<double>{4, 0});
    const auto at = [](const DeviceBuffer& b) { return reinterpret_cast<float*>(b.data()); };
    time({"sum of squares", SumOfSquaresTask{at(g), count, norm}, 4.0 * double(count)});
    time({"update",
          UpdateTask{.weights = at(o_),
                     .first_moment = at(m),
                     .second_moment = at(v),
                     .gradient = at(g),
                     .count = count,
                     .schedule = when,
                     .squares = norm,
                     .pieces = 1},
          28.0 * double(count)});
  }

  // As a layer has them: activations of bf16, weights of fp32, which are rounded in each launch.
  void products() {
    const DeviceBuffer weights = normal_numbers(kWidth * kFfn, kWide, ledger_);
    const Matrix w{weights.data(), kWidth, kFfn, kFfn, kWide};
    const Matrix x = narrow(x_, kWidth), y = narrow(y_, kFfn), dx = narrow(grad_, kWidth);
    const double flops = 2.0 * double(tokens_) * kWidth * kFfn;
    time({.name = "x w + bias",
          .task = GemmTask{.a = x, .b = w, .c = y, .bias = floats(0)},
          .flops = flops});
    time({.name = "dy w^T", .task = GemmTask{y, w, dx, false, true}, .flops = flops});
    time({.name = "dx += dy w^T", .task = GemmTask{y, w, dx, false, true, true}, .flops = flops});
    time({.name = "dw += x^T dy", .task = GemmTask{x, y, w, true, false, true}, .flops = flops});
  }

  size_t failed() const { return failed_; }

 private:
  Matrix narrow(const DeviceBuffer& at, int64_t cols) const {
    return {at.data(), tokens_, cols, cols, kNarrow};
  }
  Matrix wide(const DeviceBuffer& at, int64_t cols) const {
    return {at.data(), tokens_, cols, cols, kWide};
  }
  float* floats(int64_t list) const {
    return reinterpret_cast<float*>(columns_.data()) + list * kFfn;
  }

  void loss(const Matrix& table) {
    const int64_t rows = std::min<int64_t>(2048, tokens_);
    const DeviceBuffer logits = normal_numbers(rows * vocabulary_, kWide, ledger_);
    const DeviceBuffer sum = normal_numbers(kHeadDim, kWide, ledger_);
    const Matrix z{logits.data(), rows, vocabulary_, vocabulary_, kWide};
    const Matrix x = narrow(x_, kWidth).rows_from(0, rows),
                 dx = narrow(grad_, kWidth).rows_from(0, rows);
    const double flops = 2.0 * double(rows) * double(vocabulary_) * kWidth;
    auto* const into = reinterpret_cast<double*>(sum.data());
    time({"cross entropy", CrossEntropyTask{z, token_at_, 1e-3f, into},
          8.0 * double(rows) * double(vocabulary_)});
    time({.name = "logits", .task = GemmTask{x, table, z, false, true}, .flops = flops});
    time({.name = "dlogits table", .task = GemmTask{z, table, dx}, .flops = flops});
    time({.name = "dlogits^T x", .task = GemmTask{z, x, table, true, false, true}, .flops = flops});
  }

  void time(const Measured& m) {
    if (late_()) return;
    Json json = Json()
                    .set("section", "model")
                    .set("kernel", m.name)
                    .set("op", op_of(m.task))
                    .set("tokens", tokens_);
    note_work(concat("model ", m.name));
    std::printf("%-11s %-15s", "model", m.name);
    try {
      MemoryLedger scratch;
      const Prepared work = prepare_model_task(m.task, scratch);
      const Stream stream;
      const DeviceTiming timing = time_on_device(
          stream, {.samples = quick_ ? 5 : 10, .budget_s = 0.5}, [&] { work.launch(stream); });
      const double rate = (m.flops > 0 ? m.flops : m.bytes) / timing.median_s;
      std::printf(m.flops > 0 ? " %9.1f TFLOP/s\n" : " %9.1f GB/s\n",
                  rate * (m.flops > 0 ? 1e-12 : 1e-9));
      json.set(m.flops > 0 ? "flops" : "bytes", m.flops > 0 ? m.flops : m.bytes)
          .set(m.flops > 0 ? "flops_per_s" : "bytes_per_s", rate)
          .set("scratch_bytes", scratch.peak_bytes())
          .set("timing", timing_json(timing));
    } catch (const std::exception& e) {
      ++failed_;
      json.set("status", "error").set("reason", e.what());
      std::printf("  %s\n", e.what());
    }
    std::fflush(stdout);
    points_.push_back(json);
  }

  int64_t tokens_, vocabulary_;
  bool quick_;
  const std::function<bool()>& late_;
  std::vector<Json>& points_;
  size_t failed_ = 0;
  MemoryLedger ledger_;
  DeviceBuffer x_ = normal_numbers(tokens_ * kFfn, kNarrow, ledger_),
               y_ = normal_numbers(tokens_ * kFfn, kNarrow, ledger_),
               grad_ = normal_numbers(tokens_ * kFfn, kNarrow, ledger_),
               o_ = normal_numbers(tokens_ * kWidth, kWide, ledger_),
               columns_ = normal_numbers(4 * kFfn, kWide, ledger_);
  DeviceBuffer token_list_, byte_list_;
  const int32_t *token_at_ = nullptr, *byte_at_ = nullptr;
};

}  // namespace

DeviceBuffer normal_numbers(int64_t count, DType dtype, MemoryLedger& ledger) {
  DeviceBuffer out(ledger, "numbers", count * dtype_bytes(dtype));
  const FillRows rows{.rows = count / kHeadDim, .out = out.data(), .row_stride = kHeadDim};
  make_device_row_worker()->fill({&rows, 1}, {.seed = 1, .head_dim = kHeadDim, .dtype = dtype}, 1,
                                 nullptr);
  return out;
}

size_t time_model(int64_t tokens, bool quick, const std::function<bool()>& late,
                  std::vector<Json>& points) {
  if (!why_device_model_absent().empty()) return 0;
  ModelTimes times(tokens, quick, late, points);
  times.rows();
  times.embedding();
  times.update();
  times.products();
  return times.failed();
}

}  // namespace longnet::gpu
