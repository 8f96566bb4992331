// gpu_kernels_benchmark: attention kernels on one GPU, beside the ceiling model and cuDNN.
#include <algorithm>
#include <cstdio>

#include "core/check.h"
#include "execute/tolerances.h"
#include "gpu/kernels_gemm.h"
#include "gpu/kernels_usage.h"
#include "gpu/support.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_model.h"
#include "kernels/cuda/rows.h"
#include "measure/sampler.h"

namespace longnet::gpu {
namespace {

struct Model {
  int64_t heads, head_dim;
};
constexpr Model kModels[] = {{12, 64}, {8, 128}};
constexpr int64_t kTokens = 131072;  // in the sweep: 0.8 GB of Q, K, V and O at 12 x 64

class Benchmark {
 public:
  explicit Benchmark(const Arguments& arguments)
      : path_(arguments.text("--json", "")),
        only_section_(arguments.text("--section", "")),
        only_shape_(arguments.text("--shape", "")),
        only_rows_(int64_t(arguments.number("--rows", 0))),
        tokens_(int64_t(arguments.number("--tokens", kTokens))),
        seconds_(arguments.number("--seconds", 120)),
        quick_(arguments.has("--quick")),
        sm90a_(arguments.has("--sm90a")),
        report_(devices()) {}

  int run() {
    std::printf("# %s\n# %-9s %-14s %4s %6s %6s %3s %9s %8s %8s\n",
                report_.devices.at(0).name.c_str(), "section", "kernel", "d", "rows", "causal", "r",
                "TFLOP/s", "ceiling", "to_cudnn");
    const auto each_model = [&](void (Benchmark::*section)(const Model&)) {
      for (const Model& model : kModels) (this->*section)(model);
    };
    const std::pair<std::string_view, std::function<void()>> sections[] = {
        {"rows",
         [&] {
           if (only_rows_ == 0) failed_ += time_rows(16 * tokens_, points_);
         }},
        {"dilation", [&] { each_model(&Benchmark::dilation); }},
        {"sweep", [&] { each_model(&Benchmark::sweep); }},
        {"backward", [&] { each_model(&Benchmark::backward); }},
        {"gemm",
         [&] {
           if (!sm90a_ && only_rows_ == 0 && !late())
             failed_ += time_products(tokens_ / 4, quick_, points_);
         }},
        {"merge", [&] { each_model(&Benchmark::merge); }},
        {"model",
         [&] {
           if (!sm90a_ && only_rows_ == 0)
             failed_ += time_model(
                 tokens_ / 4, quick_, [&] { return late(); }, points_);
         }},
    };
    bool known = only_section_.empty();
    for (const auto& [name, section] : sections)
      if (only_section_.empty() || name == only_section_) section(), known = true;
    if (!known) throw UsageError(concat("--section: there is no '", only_section_, "'"));
    judge();
    write();
    std::printf("# %zu points, %zu left out for lack of time, %zu failed\n", points_.size(),
                left_out_, failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  struct Point {
    std::string section, kernel;
    int64_t head_dim, rows, dilation_rate = 1;
    bool causal = false;
    std::string shape{};   // tile shape of an own kernel
    bool standard = true;  // the shape that the kernel takes by itself
    std::string label() const {
      return shape.empty() ? kernel : kernel + (standard ? " " : "/") + shape;
    }
    std::string pass() const { return section == "backward" ? section : "forward"; }
    auto place() const { return std::tuple(pass(), head_dim, rows, dilation_rate, causal); }
    auto key() const {
      return std::tuple(section, standard ? kernel : label(), head_dim, rows, dilation_rate,
                        causal);
    }
  };

  std::string own_kernel() const { return sm90a_ ? "cuda_sm90a" : "cuda"; }
  bool late() {
    const bool out_of_time = steady_seconds() - begin_s_ > seconds_;
    left_out_ += out_of_time;
    return out_of_time;
  }

  bool wanted(const Point& p) const {
    const int64_t tokens = p.section == "dilation" ? tokens_ * p.dilation_rate : tokens_;
    return (only_rows_ == 0 || p.rows == only_rows_) && p.rows * p.dilation_rate <= tokens &&
           (only_shape_.empty() || p.shape.empty() || p.shape == only_shape_);
  }

  // FLOP/s, or 0 when the kernel refused; `extra` runs after the attend, inside the region.
  double measure(const Point& p, const DeviceKernel& kernel, const std::vector<AttendGrid>& tasks,
                 DeviceAttendOptions options,
                 const std::function<void(const Stream&)>& extra = {}) {
    options.head_dim = p.head_dim;
    options.causal = p.causal;
    const bool shows = !options.merge && !options.keep_16_bits;
    return measure(
        p, 4.0 * double(p.head_dim), pairs_of(tasks, p.causal),
        [&](MemoryLedger& ledger) {
          Prepared work = kernel.prepare(tasks, options, ledger);
          if (extra) work.then(extra);
          return work;
        },
        [&](const Prepared&) {
          if (!shows) return;
          const AttendTask last = tasks.back().at(tasks.back().size() - 1);
          require_as_before(p, dense_rows(last.out.o, last.out.o_stride, last.q.rows, p.head_dim));
        });
  }

  // Throws Error where rows differ from those that the first kernel of this point has computed.
  void require_as_before(const Point& p, const std::vector<float>& rows) {
    const auto [known, is_new] = rows_.try_emplace({p.section, p.place()}, rows);
    const double off = distance(rows, known->second);
    check(off <= 2 * kRoundedGradientTolerance, "wrong: its last rows are ", off,
          " from those of cuda");
  }

  // `verify`: throws Error where the results are wrong.
  double measure(const Point& p, double flops_per_pair, double pairs,
                 const std::function<Prepared(MemoryLedger&)>& prepare,
                 const std::function<void(const Prepared&)>& verify) {
    if (!wanted(p)) return 0;
    Json json = Json()
                    .set("section", p.section)
                    .set("kernel", p.kernel)
                    .set("shape", p.shape)
                    .set("default", p.standard)
                    .set("head_dim", p.head_dim)
                    .set("rows", p.rows)
                    .set("dilation_rate", p.dilation_rate)
                    .set("causal", p.causal);
    double rate = 0;
    note_work(concat(p.section, " ", p.label(), " d ", p.head_dim, " rows ", p.rows, " r ",
                     p.dilation_rate, " causal ", p.causal));
    std::printf("%-11s %-14s %4d %6d %6d %3d", p.section.c_str(), p.label().c_str(),
                int(p.head_dim), int(p.rows), int(p.causal), int(p.dilation_rate));
    try {
      MemoryLedger ledger;
      const Prepared work = prepare(ledger);
      const Stream stream;
      const DeviceTiming timing = time_on_device(
          stream, {.samples = quick_ ? 5 : 10, .budget_s = 1.5}, [&] { work.launch(stream); });
      stream.synchronize();
      verify(work);
      rate = flops_per_pair * pairs / timing.median_s;
      const DeviceInfo& device = report_.devices.at(0);
      const double hz = timing.during.known ? timing.during.sm_mhz * 1e6 : device.clock_khz * 1e3;
      const double ceiling = attention_ceiling_flops(device, flops_per_pair, hz);
      const double cudnn = cudnn_rate_[p.place()];
      json.set("flops_per_s", rate)
          .set("share_of_ceiling", rate / ceiling)
          .set("ratio_to_cudnn", cudnn > 0 ? rate / cudnn : NAN)
          .set("scratch_bytes", ledger.peak_bytes())
          .set("timing", timing_json(timing));
      std::printf(" %9.1f %8.3f %8.3f\n", rate * 1e-12, rate / ceiling,
                  cudnn > 0 ? rate / cudnn : 0.0);
    } catch (const std::exception& e) {
      ++failed_;
      json.set("status", "error").set("reason", e.what());
      std::printf("  %s\n", e.what());
    }
    rates_[p.key()] = rate;
    std::fflush(stdout);
    points_.push_back(json);
    write();
    return rate;
  }

  // cuDNN first, so that the others have their ratio.
  void all_kernels(Point p, const std::vector<AttendGrid>& tasks, bool variants) {
    if (why_cudnn_absent().empty()) {
      p.kernel = "cudnn";
      cudnn_rate_[p.place()] = measure(p, *make_cudnn_kernel(), tasks, {.keep_16_bits = true});
    }
    const auto own = [&](const char* name, const auto& shapes, bool all, const auto& make) {
      p.kernel = name;
      for (size_t i = 0; i < (all ? shapes.size() : 1); ++i) {
        p.shape = shapes[i];
        p.standard = i == 0;
        measure(p, *make(shapes[i]), tasks, {});
      }
    };
    own("cuda", cuda_kernel_shapes(p.head_dim, p.causal), variants && !sm90a_, make_cuda_kernel);
    if (sm90a_)
      own("cuda_sm90a", sm90a_kernel_shapes(p.head_dim, p.causal), variants, make_sm90a_kernel);
  }

  void sweep(const Model& model) {
    MemoryLedger ledger;
    PackedTensors tensors(tokens_, model.heads, model.head_dim, ledger);
    for (const bool causal : {false, true})
      for (const int64_t rows : {2048, 16384, 8192, 4096, 1024, 512}) {
        if (late()) continue;
        all_kernels({"sweep", "", model.head_dim, rows, 1, causal}, tensors.branch(rows, 1), true);
      }
  }

  void dilation(const Model& model) {
    constexpr int64_t kRows = 2048;
    for (const int64_t r : {1, 4, 16}) {
      if (late()) continue;
      MemoryLedger ledger;
      // As many tasks at each rate: rates of unequal numbers of waves would not compare.
      PackedTensors tensors(tokens_ * r, model.heads, model.head_dim, ledger);
      const auto tasks = tensors.branch(kRows * r, r);
      Point p{"dilation", "", model.head_dim, kRows, r};
      all_kernels(p, tasks, false);
      if (sm90a_) continue;
      p.kernel = "gather";
      measure(p, *make_gather_kernel(make_cuda_kernel()), tasks, {});
    }
  }

  void backward(const Model& model) {
    for (const int64_t r : {1, 4}) {
      MemoryLedger ledger;
      PackedTensors tensors(tokens_, model.heads, model.head_dim, ledger);
      for (const bool causal : {false, true})
        for (const int64_t rows : {2048, 16384}) {
          if (late()) continue;
          backward({"backward", "", model.head_dim, rows, r, causal}, tensors);
        }
    }
  }
  void backward(Point p, PackedTensors& tensors) {
    if (!wanted(p)) return;
    const auto grids = tensors.backward(p.rows * p.dilation_rate, p.dilation_rate, p.causal);
    std::vector<AttendGrid> attends;
    for (const BackwardGrid& grid : grids) attends.push_back(grid.attend);
    const auto timed = [&](const std::string& name, const DeviceKernel& kernel,
                           DeviceAttendOptions options) {
      p.kernel = name;
      options.head_dim = p.head_dim;
      options.causal = p.causal;
      return measure(
          p, 10.0 * double(p.head_dim), pairs_of(attends, p.causal),
          [&](MemoryLedger& ledger) { return kernel.prepare_backward(grids, options, ledger); },
          [&](const Prepared& work) {
            if (!options.keep_16_bits) verify_backward(p, tensors, grids.back(), work);
          });
    };
    if (why_cudnn_absent().empty()) {
      const auto cudnn = make_cudnn_kernel();
      cudnn_rate_[p.place()] = timed("cudnn", *cudnn, {.keep_16_bits = true});
      timed("cudnn any order", *cudnn, {.keep_16_bits = true, .any_order = true});
    }
    timed("cuda", *make_cuda_kernel(), {});
    if (sm90a_) timed("cuda_sm90a", *make_sm90a_kernel(), {});
  }

  // Timed launches have each added to the gradients.
  void verify_backward(const Point& p, const PackedTensors& tensors, const BackwardGrid& grid,
                       const Prepared& work) {
    const Stream stream;
    stream.fill(tensors.gradients().data(), 0, tensors.gradients().size());
    work.launch(stream);
    stream.synchronize();
    const BackwardTask last = grid.at(grid.size() - 1, 2);
    require_as_before(p, dense_rows(last.grad_q, last.q.row_stride, last.q.rows, p.head_dim));
  }

  void merge(const Model& model) {
    constexpr int64_t kRows = 2048, kRate = 4;
    if (late()) return;
    MemoryLedger ledger;
    PackedTensors tensors(16 * kRows * kRate, model.heads, model.head_dim, ledger);
    const auto kernel = sm90a_ ? make_sm90a_kernel() : make_cuda_kernel();
    {  // something to merge into
      const Stream stream;
      const auto dense =
          kernel->prepare(tensors.branch(kRows, 1), {.head_dim = model.head_dim}, ledger);
      dense.launch(stream);
      stream.synchronize();
    }
    Point p{"merge", own_kernel() + " fused", model.head_dim, kRows, kRate};
    const auto strided = tensors.branch(kRows * kRate, kRate);
    measure(p, *kernel, strided, {.merge = true});
    const auto compact = tensors.compact_branch(kRows * kRate, kRate);
    std::vector<MergeTask> merges;
    for (size_t g = 0; g < compact.size(); ++g)
      for (int64_t i = 0; i < compact[g].size(); ++i)
        merges.push_back({compact[g].at(i).out, strided[g].at(i).out, compact[g].task.q.rows});
    const Prepared separate = prepare_merge(merges, MergeRule::kLse, model.head_dim, ledger);
    p.kernel = own_kernel() + " + merge";
    measure(p, *kernel, compact, {}, [&](const Stream& stream) { separate.launch(stream); });
    p.kernel = own_kernel() + " alone";
    measure(p, *kernel, compact, {});
  }

  double rate(const std::string& section, const std::string& kernel, int64_t head_dim,
              int64_t dilation_rate) const {
    const auto it = rates_.find({section, kernel, head_dim, 2048, dilation_rate, false});
    return it == rates_.end() ? 0 : it->second;
  }
  // `goal` 0: a figure without one. Nothing where what it needs was not measured.
  void say(const std::string& name, double value, double goal) {
    if (!(value > 0) || !std::isfinite(value)) return;
    const char* verdict = goal == 0 ? "" : value >= goal ? "met" : "missed";
    std::printf("# %-52s %8.3f  %s", name.c_str(), value, goal > 0 ? "goal " : "");
    if (goal > 0) std::printf("%.3f %s", goal, verdict);
    std::printf("\n");
    goals_.push_back(Json()
                         .set("name", name)
                         .set("value", value)
                         .set("goal", goal > 0 ? goal : NAN)
                         .set("verdict", verdict));
  }
  void judge() {
    const double sm90a = rate("sweep", "cuda_sm90a", 64, 1);
    if (sm90a > 0)  // gpu_validate.sh takes the kernel of its sweeps from this line
      std::printf("# fastest own kernel, d = 64, 2048 rows: %s\n",
                  sm90a > rate("sweep", "cuda", 64, 1) ? "cuda_sm90a" : "cuda");
    for (const Model& model : kModels) {
      const int64_t d = model.head_dim;
      const std::string at = concat(", d = ", d, ", 2048 rows");
      const double cuda = rate("sweep", "cuda", d, 1), cudnn = rate("sweep", "cudnn", d, 1);
      say("TFLOP/s of cuda" + at, cuda * 1e-12, d == 64 ? 270 : 300);
      say("cuda / cudnn" + at, cuda / cudnn, 0);
      say("cuda_sm90a / cudnn" + at, rate("sweep", "cuda_sm90a", d, 1) / cudnn, d == 64 ? 1 : 0);
      for (const char* kernel : {"cuda", "cudnn", "cuda_sm90a"})
        say(concat("r = 4 / dense, ", kernel, at),
            rate("dilation", kernel, d, 4) / rate("dilation", kernel, d, 1), 0.95);
      for (const int64_t r : {4, 16})
        say(concat("view / gather and scatter, cuda, r = ", r, at),
            rate("dilation", "cuda", d, r) / rate("dilation", "gather", d, r), 0);
      const std::string own = own_kernel();
      const double own_backward = rate("backward", own, d, 1);
      say(concat("TFLOP/s of ", own, ", backward", at), own_backward * 1e-12, 0);
      say(concat(own, " / cudnn, backward, both in one order", at),
          own_backward / rate("backward", "cudnn", d, 1), 0.9);
      say(concat(own, " / cudnn, backward, cudnn in any order", at),
          own_backward / rate("backward", "cudnn any order", d, 1), 0);
      const double fused = rate("merge", own + " fused", d, 4);
      say(concat("merge in the kernel / by a launch, ", own, at),
          fused / rate("merge", own + " + merge", d, 4), 0);
      say(concat("rate of a merging attend / of a bare one, ", own, at),
          fused / rate("merge", own + " alone", d, 4), 0.97);
    }
  }

  void write() const {
    if (path_.empty()) return;
    write_file(path_, Json()
                          .set("schema_version", 1)
                          .set("program", "gpu_kernels_benchmark")
                          .set("device", device_json())
                          .set("cudnn", describe_cudnn())
                          .set("cublaslt", describe_cublaslt())
                          .set("left_out", int64_t(left_out_))
                          .set("goals", goals_)
                          .set("points", points_)
                          .text());
  }

  std::string path_, only_section_, only_shape_;
  int64_t only_rows_, tokens_;
  double seconds_, begin_s_ = steady_seconds();
  bool quick_, sm90a_;
  DeviceReport report_;
  std::vector<Json> points_, goals_;
  std::map<std::tuple<std::string, std::string, int64_t, int64_t, int64_t, bool>, double> rates_;
  using Place = std::tuple<std::string, int64_t, int64_t, int64_t, bool>;
  std::map<Place, double> cudnn_rate_;
  std::map<std::pair<std::string, Place>, std::vector<float>> rows_;
  size_t left_out_ = 0, failed_ = 0;
};

}  // namespace
}  // namespace longnet::gpu

int main(int argc, char** argv) {
  using namespace longnet::gpu;
  return run_program(
      {"gpu_kernels_benchmark",
       kUsage,
       {"--json", "--seconds", "--quick", "--sm90a", "--section", "--rows", "--shape", "--tokens"}},
      argc, argv, [](const Arguments& arguments) { return Benchmark(arguments).run(); });
}
