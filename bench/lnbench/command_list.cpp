// `lnbench list`: what a config or an option can name, one line each.
#include <algorithm>

#include "comm/host_transport.h"
#include "core/transports.h"
#include "kernels/attention_kernel.h"
#include "kernels/cuda/device_kernel.h"
#include "lnbench/terminal.h"
#include "run/shipped.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

struct Listed {
  std::string kind, name, about;
};

// Up to the end of the first sentence, which an ellipsis is not.
std::string first_sentence(const std::string& text) {
  size_t end = text.find(". ");
  while (end != std::string::npos && text.substr(0, end).ends_with('.'))
    end = text.find(". ", end + 1);
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

std::vector<Listed> everything() {
  std::vector<Listed> all;
  const auto add = [&](const char* kind, std::string_view name, std::string_view about) {
    all.push_back({kind, std::string(name), std::string(about)});
  };
  for (const ShippedFile& file : shipped_files("configs"))
    add("config", file.name, first_sentence(file.about));
  for (const AlgorithmInfo& a : algorithms()) add("algorithm", a.name, a.summary);
  for (const KernelInfo& k : kernels()) add("kernel", k.name, k.about);
  for (const DeviceKernelInfo& k : device_kernels()) add("kernel", k.name, k.about);
  for (const auto kind : enum_values<DeviceTransportKind>())
    add("transport", to_string(kind), about(kind));
  add("transport", kThreadTransport, kAboutThreads);
  for (const HostTransport& t : host_transports()) add("transport", t.name, t.about);
  for (const ShippedFile& file : shipped_files("clusters"))
    add("cluster", file.name, first_sentence(file.about));
  return all;
}

}  // namespace

int run_list(const Options& options) {
  using enum Shown;
  std::vector<Listed> listed = everything();
  if (!options.list_kind.empty())
    std::erase_if(listed, [&](const Listed& l) { return options.list_kind != l.kind + "s"; });
  size_t longest = 0;
  for (const Listed& l : listed) longest = std::max(longest, l.name.size());
  Table<Listed> table({{"kind", "", kText, 9, 0, [](const Listed& l) { return l.kind; }},
                       {"name", "", kText, int(longest), 0, [](const Listed& l) { return l.name; }},
                       {"about", "", kSummary, 20, 0, [](const Listed& l) { return l.about; }}},
                      table_style(options));
  for (const Listed& l : listed) table.add(l);
  table.finish();
  return kOk;
}

}  // namespace longnet
