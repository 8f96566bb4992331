#include "run/checkpoint.h"

#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "io/durable_file.h"
#include "io/sha256.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

constexpr char kFile[] = "checkpoint.bin";

std::string path_in(const std::string& directory) { return directory + "/" + kFile; }

[[noreturn]] void refuse(const std::string& directory, std::string_view why) {
  throw UsageError("'", path_in(directory), "' ", why, "\n  hint: start a new run");
}

}  // namespace

void write_checkpoint(const std::string& directory, const Checkpoint& checkpoint) {
  std::string values;
  for (const auto* part :
       {&checkpoint.weights, &checkpoint.first_moments, &checkpoint.second_moments})
    values.append(reinterpret_cast<const char*>(part->data()), part->size() * sizeof(float));
  const JsonNode head = JsonNode::object({{"format", 1},
                                          {"step", checkpoint.step},
                                          {"values", int64_t(checkpoint.weights.size())},
                                          {"sha256", sha256_hex(values)}});
  replace_file(directory, kFile, dump_json(head) + "\n" + values);
}

std::optional<Checkpoint> read_checkpoint(const std::string& directory) {
  if (!std::filesystem::exists(path_in(directory))) return {};
  const std::string text = read_file_text(path_in(directory), "start a new run");
  const size_t end = text.find('\n');
  if (end == std::string::npos || end > 4096) refuse(directory, "is no checkpoint");
  const JsonNode head = parse_json(text.substr(0, end), path_in(directory));
  const std::string_view values = std::string_view(text).substr(end + 1);
  const int64_t count = head.whole("values", -1), step = head.whole("step", -1);
  constexpr size_t kBytes = 3 * sizeof(float);
  if (head.whole("format") != 1 || count < 0 || step < 0 || values.size() % kBytes != 0 ||
      values.size() / kBytes != size_t(count))
    refuse(directory, "is not whole");
  if (sha256_hex(values) != head.text("sha256")) refuse(directory, "is damaged");
  Checkpoint out{.step = step, .weights = {}, .first_moments = {}, .second_moments = {}};
  const char* at = values.data();
  for (auto* part : {&out.weights, &out.first_moments, &out.second_moments}) {
    part->resize(size_t(count));
    std::memcpy(part->data(), at, part->size() * sizeof(float));
    at += part->size() * sizeof(float);
  }
  return out;
}

}  // namespace longnet
