// gpu_check: is what the GPU computes right? Every device function against the CPU's reference.
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "gpu/check.h"
#include "gpu/support.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_model.h"
#include "measure/sampler.h"

namespace longnet::gpu {

void Outcome::expect(bool ok, const std::string& what) {
  ++cases;
  if (ok) return;
  if (failed++ == 0) first_failure = what;
  std::printf("  FAILED %s\n", what.c_str());
  std::fflush(stdout);
}

bool left_out(const std::string& why) {
  if (!why.empty()) std::printf("  left out: %s\n", why.c_str());
  return !why.empty();
}

namespace {

constexpr const char* kUsage =
    R"(gpu_check: is what the GPU computes right? Every device function against the CPU's reference.

  gpu_check [--json FILE] [--small] [--only SECTION,SECTION...]

  --only   of: ipc, generator, rows, summaries, gemm, model, attend, backward, sm90a,
           sm90a_backward, cudnn, cudnn_backward, branches, programs, programs_backward,
           programs_sm90a, programs_model, virtual, refusals
  --small  shapes for compute-sanitizer, which slows a kernel down a hundredfold
  --json   what was checked and how far off it was, renewed after every section

Exit codes: 0 all passed, 1 something is wrong, 2 usage, 3 no GPU.
)";

struct Section {
  const char* name;
  void (*run)(Outcome&, bool small);
};
constexpr Section kSections[] = {
    {"ipc", check_ipc},
    {"generator", check_generator},
    {"rows", check_rows},
    {"summaries", check_summaries},
    {"gemm", check_gemm},
    {"model", check_model},
    {"attend", check_attend},
    {"backward", check_backward},
    {"sm90a", check_sm90a},
    {"sm90a_backward", check_sm90a_backward},
    {"cudnn", check_cudnn},
    {"cudnn_backward", check_cudnn_backward},
    {"branches", check_branches},
    {"programs", check_programs},
    {"programs_backward", check_programs_backward},
    {"programs_sm90a", check_programs_sm90a},
    {"programs_model", check_programs_model},
    {"virtual", check_virtual},
    {"refusals", check_refusals},
};

bool wanted(const std::string& list, const std::string& section) {
  return ("," + list + ",").find("," + section + ",") != std::string::npos;
}

void require_known(const std::string& list) {
  std::string known;
  for (const Section& s : kSections) known += concat(known.empty() ? "" : ", ", s.name);
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    if (std::ranges::none_of(kSections, [&](const Section& s) { return word == s.name; }))
      throw UsageError(concat("--only: no section is called '", word, "': there are ", known));
}

int check_all(const Arguments& arguments) {
  if (arguments.has("--only")) require_known(arguments.text("--only", "") + ",");
  std::vector<Json> sections;
  int64_t failed = 0;
  for (const Section& section : kSections) {
    if (!wanted(arguments.text("--only", section.name), section.name)) continue;
    const double begin = steady_seconds();
    Outcome out;
    note_work(section.name);
    try {
      section.run(out, arguments.has("--small"));
    } catch (const std::exception& e) {
      out.expect(false, concat(section.name, ": ", e.what()));
    }
    const double took = steady_seconds() - begin;
    std::printf("%-10s %5d cases, %d failed, worst rel_l2 %.2e, %.1f s\n", section.name,
                int(out.cases), int(out.failed), out.worst, took);
    std::fflush(stdout);
    failed += out.failed;
    sections.push_back(Json()
                           .set("section", section.name)
                           .set("cases", out.cases)
                           .set("failed", out.failed)
                           .set("first_failure", out.first_failure)
                           .set("worst_rel_l2", out.worst)
                           .set("seconds", took));
    if (const std::string path = arguments.text("--json", ""); !path.empty())
      write_file(path, Json()
                           .set("schema_version", 1)
                           .set("program", "gpu_check")
                           .set("device", device_json())
                           .set("cudnn", describe_cudnn())
                           .set("cublaslt", describe_cublaslt())
                           .set("nccl", describe_nccl())
                           .set("failed", failed)
                           .set("sections", sections)
                           .text());
  }
  std::printf("%s\n", failed == 0 ? "all passed" : "FAILED");
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longnet::gpu

int main(int argc, char** argv) {
  using namespace longnet::gpu;
  if (argc == 3 && std::string_view(argv[1]) == "--ipc-child") return run_ipc_child(argv[2]);
  return run_program({"gpu_check", kUsage, {"--json", "--small", "--only"}}, argc, argv, check_all);
}
