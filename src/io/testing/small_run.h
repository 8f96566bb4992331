// For tests: small configs, their points and records, and the head of a run's result.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/testing/test_support.h"
#include "io/config.h"
#include "io/expand.h"
#include "io/result.h"

namespace longnet {

// ---- any sweep ----

inline Config config(const std::string& sweep, const std::string& rest = "") {
  return parse_config(concat("{ \"schema_version\": 1, \"sweep\": { ", sweep, " }",
                             rest.empty() ? "" : ", ", rest, " }"),
                      "t.json");
}

inline const KnownNames kKnown{
    .names = {
        {"algorithm", {"local", "dilated", "sparse", "ring", "all_gather", "usp", "double_ring"}},
        {"kernel", {"cpu", "reference"}},
        {"collective", {"native", "ring", "bruck", "pairwise"}}}};

inline std::string with(const std::string& rest,
                        const std::string& sweep = R"("algorithm": "ring", "seq_len": "8K")") {
  return concat("{ \"schema_version\": 1,\n  \"sweep\": { ", sweep, " }",
                rest.empty() ? "" : ",\n  ", rest, "\n}\n");
}

inline Config parse(const std::string& text, std::vector<std::string> overrides = {}) {
  return parse_config(text, "dir/x.json", {.overrides = std::move(overrides), .known = kKnown});
}

inline std::string error_of(const std::string& text, std::vector<std::string> overrides = {}) {
  return usage_error([&] { parse(text, std::move(overrides)); });
}

// ---- a run of two algorithms at three lengths, on two ranks ----

inline constexpr const char* kConfig = R"({ "schema_version": 1, "name": "demo",
  "sweep": { "algorithm": ["dilated", "ring"], "seq_len": ["8K", "16K", "32K"], "ranks": 2 } })";

inline std::vector<Point> points() { return expand(parse_config(kConfig, "demo.json")); }

inline PointRecord ok_record(const Point& p, double median) {
  PointRecord r = make_record(p);
  r.params.threads = 1;
  set_timing(r, std::vector<double>(10, median), 3);
  return r;
}

inline Result head() {
  const Config c = parse_config(kConfig, "demo.json");
  Result o;
  o.run = {.name = c.name,
           .command = "lnbench run demo.json",
           .config_path = "demo.json",
           .config_sha256 = config_sha256(c),
           .transport = "threads",
           .world_size = 2,
           .planned = 6,
           .config = resolved_config(c)};
  o.environment = capture_environment({.mpi_version = "Open MPI 4.1.4"});
  o.ranks = {{.rank = 0, .hostname = "a", .cores = 1},
             {.rank = 1, .hostname = "b", .cores = 1, .device = "gpu 0"}};
  return o;
}

}  // namespace longnet
