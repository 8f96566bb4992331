// `lnbench list`: what a config or an option can name, one line each.
#include "core/check.h"
#include "lnbench/terminal.h"
#include "run/shipped.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

struct Listed {
  std::string kind, name, about;
};

// Descriptions that the registries of kernels and transports do not hold.
const Listed kAbout[] = {
    {"kernel", "reference", "the host, double precision, obvious and slow"},
    {"kernel", "cpu", "the host's cores, SIMD by Highway, OpenMP threads"},
    {"kernel", "cuda", "a GPU from compute capability 8.0, own kernel on strided views"},
    {"kernel", "cuda_sm90a", "Hopper, own kernel with TMA and wgmma"},
    {"kernel", "cudnn", "cuDNN's attention on strided views, as a yardstick"},
    {"kernel", "gather", "pack, dense attention, scatter: what strided views save"},
    {"transport", "auto", "MPI under mpirun, else threads; between GPUs the fastest that works"},
    {"transport", "nccl", "NCCL, one GPU per rank"},
    {"transport", "nccl_registered", "NCCL on registered buffers, which it may use in place"},
    {"transport", "cuda_ipc", "copies between ranks of one machine, which may share a GPU"},
    {"transport", "mpi_host", "through page-locked host memory and MPI, between any GPUs"},
};

// Up to the end of the first sentence.
std::string first_sentence(const std::string& text) {
  const size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

std::vector<Listed> everything() {
  std::vector<Listed> all;
  for (const ShippedFile& file : shipped_files("configs"))
    all.push_back({"config", file.name, first_sentence(file.about)});
  for (const AlgorithmInfo& a : algorithms())
    all.push_back({"algorithm", std::string(a.name), std::string(a.summary)});
  const KnownNames known = known_names();
  for (const std::string& name : known.names.at("kernel")) {
    const auto* const at = std::ranges::find(kAbout, name, &Listed::name);
    check(at != std::end(kAbout), "command_list.cpp has no description of kernel ", name);
    all.push_back(*at);
  }
  for (const Listed& l : kAbout)
    if (l.kind == "transport") all.push_back(l);
  for (const ShippedFile& file : shipped_files("clusters"))
    all.push_back({"cluster", file.name, first_sentence(file.about)});
  return all;
}

}  // namespace

int run_list(const Options& options) {
  using enum Shown;
  Table<Listed> table({{"kind", "", kText, 9, 0, [](const Listed& l) { return l.kind; }},
                       {"name", "", kText, 28, 0, [](const Listed& l) { return l.name; }},
                       {"about", "", kSummary, 20, 0, [](const Listed& l) { return l.about; }}},
                      table_style(options));
  for (const Listed& l : everything())
    if (options.list_kind.empty() || options.list_kind == l.kind + "s") table.add(l);
  table.finish();
  return kOk;
}

}  // namespace longnet
