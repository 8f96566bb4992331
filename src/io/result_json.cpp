// run.json, result.json and timelines.jsonl: reading and writing.
#include "io/result_json.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/check.h"
#include "io/field_json.h"
#include "io/record_node.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

JsonNode run_node(const RunInfo& r) {
  JsonNode n = write_fields(r);
  n.set("config", r.config_json.empty() ? JsonNode() : parse_json(r.config_json, "config"));
  return r.cluster_json.empty() ? n : n.set("cluster", parse_json(r.cluster_json, "cluster"));
}

RunInfo run_from(const JsonNode& n) {
  RunInfo r;
  read_fields(n, r);
  if (const JsonNode* config = n.find("config"); config && config->is_object())
    r.config_json = dump_json(*config, 2);
  if (const JsonNode* cluster = n.find("cluster"); cluster && cluster->is_object())
    r.cluster_json = dump_json(*cluster, 2);
  if (r.transport == "virtual" || r.transport == "simulated") {  // before there were modes
    r.mode = r.transport;
    r.transport.clear();
  }
  return r;
}

JsonNode head_node(const Result& r) {
  JsonNode n = JsonNode::object();
  n.set("schema_version", 1).set("run", run_node(r.run)).set("build", to_json(r.build));
  n.set("environment", to_json(r.environment));
  return n.set("ranks", to_json(r.ranks));
}

Result head_from(const JsonNode& n) {
  if (n.whole("schema_version") != 1 || !n.find("run"))
    throw UsageError(concat(n.where(),
                            ": this is no result of lnbench (schema_version 1)\n  hint: name a "
                            "folder under results/ or its result.json"));
  Result r;
  r.run = run_from(*n.find("run"));
  if (const JsonNode* build = n.find("build")) from_json(*build, r.build);
  if (const JsonNode* env = n.find("environment")) from_json(*env, r.environment);
  if (const JsonNode* ranks = n.find("ranks")) from_json(*ranks, r.ranks);
  return r;
}

}  // namespace

std::string read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file)
    throw UsageError(concat("cannot read '", path, "'\n  hint: is it a folder of results?"));
  return text.str();
}

Result read_manifest(const std::string& path) {
  return head_from(parse_json(read_text_file(path), path));
}

std::string manifest_to_json(const Result& result) { return dump_json(head_node(result), 1); }

std::string result_to_json(const Result& result) {
  JsonNode n = head_node(result), points = JsonNode::array();
  for (const PointRecord& r : result.points) {
    JsonNode point = record_to_node(r);
    point.take("timeline");
    points.push(std::move(point));
  }
  n.set("points", std::move(points)).set("summary", to_json(result.summary));
  return dump_json(n, 1) + "\n";
}

std::string timelines_to_lines(const Result& result) {
  std::string lines;
  for (const PointRecord& r : result.points) {
    if (r.timeline.empty()) continue;
    JsonNode line = JsonNode::object();
    line.set("id", r.id).set("timeline", record_to_node(r).take("timeline"));
    lines += dump_json(line) + "\n";
  }
  return lines;
}

PointLines read_point_lines(const std::string& path) {
  PointLines lines;
  if (!fs::exists(path)) return lines;
  const std::string text = read_text_file(path);
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    ++number;
    if (end == std::string::npos) break;  // torn: the writer was killed inside this line
    const std::string line = text.substr(begin, end - begin);
    try {
      if (!line.empty()) lines.points.push_back(record_from_json(line));
    } catch (const UsageError& e) {
      if (end + 1 < text.size())  // damage in the middle is no torn write
        throw UsageError(concat(path, ":", number, ": damaged line ", number,
                                " of points.jsonl; delete that line to measure the point again\n  ",
                                e.what()));
      break;
    }
    begin = end + 1;
    lines.good_bytes = int64_t(begin);
  }
  return lines;
}

void put_record(std::vector<PointRecord>& records, PointRecord record) {
  for (PointRecord& r : records)
    if (r.id == record.id) {
      r = std::move(record);
      return;
    }
  records.push_back(std::move(record));
}

namespace {

// Id -> timeline, from the lines of a timelines.jsonl; none where there is no such file.
std::map<std::string, JsonNode> read_timelines(const std::string& path) {
  std::map<std::string, JsonNode> timelines;
  if (!fs::exists(path)) return timelines;
  std::istringstream lines(read_text_file(path));
  for (std::string line; std::getline(lines, line);) {
    JsonNode n = parse_json(line, path);
    timelines[n.text("id")] = n.take("timeline");
  }
  return timelines;
}

// A result.json and the timelines beside it. Older results hold the timelines themselves.
Result read_result_file(const std::string& path) {
  JsonNode n = parse_json(read_text_file(path), path);
  Result r = head_from(n);
  const auto timelines =
      read_timelines(fs::path(path).replace_filename("timelines.jsonl").string());
  for (JsonNode& point : n.take("points").items) {
    const auto timeline = timelines.find(point.text("id"));
    if (timeline != timelines.end()) point.set("timeline", timeline->second);
    r.points.push_back(record_from_node(point));
  }
  if (const JsonNode* summary = n.find("summary")) from_json(*summary, r.summary);
  return r;
}

}  // namespace

Result read_result(const std::string& path) {
  const bool folder = fs::is_directory(path);
  const std::string file = folder ? (fs::path(path) / "result.json").string() : path;
  if (!folder || fs::exists(file)) {
    Result r = read_result_file(file);
    r.path = path;
    return r;
  }
  const std::string manifest = (fs::path(path) / "run.json").string();
  Result r = read_manifest(manifest);
  r.path = path;
  for (PointRecord& p : read_point_lines((fs::path(path) / "points.jsonl").string()).points)
    put_record(r.points, std::move(p));
  const int64_t unknown = int64_t(r.points.size()) + 1;
  r.summary = summarize(r.points, r.run.planned > 0 ? r.run.planned : unknown);
  return r;
}

}  // namespace longnet
