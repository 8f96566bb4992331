#include "io/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "core/testing/test_support.h"
#include "io/axes.h"
#include "io/compare.h"
#include "io/testing/small_run.h"
#include "json/json_reader.h"
#include "json/json_tree.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ResultWriter, WritesManifestLinesAndResult) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  EXPECT_THAT(writer.directory(),
              testing::MatchesRegex(".*/results/[0-9]{8}T[0-9]{6}Z-demo-[^/]+"));
  EXPECT_TRUE(std::filesystem::exists(writer.directory() + "/run.json"));
  for (const Point& p : points()) {
    const double n = double(p.params.problem.seq_len);
    writer.append(ok_record(p, p.params.algorithm == "ring" ? 1e-9 * n * n : 1e-6 * n));
  }
  EXPECT_FALSE(std::filesystem::exists(writer.directory() + "/result.json"));
  const Summary s = writer.finish(6);
  EXPECT_EQ(s.verdict, "pass");
  EXPECT_EQ(s.counts.at("ok"), 6);
  EXPECT_EQ(s.counts.at("timeout"), 0);
  ASSERT_EQ(s.fits.size(), 2u);
  EXPECT_NEAR(s.fits[0].exponent, 1, 1e-9);
  EXPECT_NEAR(s.fits[1].exponent, 2, 1e-9);
  EXPECT_FALSE(std::filesystem::exists(writer.directory() + "/result.json.tmp"));

  const Result r = read_result(writer.directory());
  EXPECT_EQ(r.points.size(), 6u);
  EXPECT_EQ(r.run.name, "demo");
  EXPECT_EQ(r.run.world_size, 2);
  EXPECT_EQ(r.ranks[1].device, "gpu 0");
  EXPECT_EQ(r.environment.mpi_version, "Open MPI 4.1.4");
  EXPECT_EQ(r.summary.fits.size(), 2u);
  EXPECT_EQ(result_to_json(read_result(writer.directory() + "/result.json")), result_to_json(r));
  const JsonNode n = parse_json(result_to_json(r), "r");
  EXPECT_THAT(n.keys, ElementsAre("schema_version", "run", "build", "environment", "ranks",
                                  "points", "summary"));
  // The config inside the result is the resolved one, whose hash is the one beside it.
  EXPECT_EQ(config_sha256(parse_config(dump_json(r.run.config), "x.json")), r.run.config_sha256);
}

std::vector<double> timeline_ends(const std::string& path) {  // 0: the point has no timeline
  std::vector<double> ends;
  for (const PointRecord& p : read_result(path).points)
    ends.push_back(p.timeline.empty() ? 0 : p.timeline[0].end_s);
  return ends;
}

TEST(ResultWriter, WritesALineForEachPointAndTimelinesApart) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  const std::string directory = writer.directory();
  const auto all = points();
  for (int i = 0; i < 3; ++i) {
    PointRecord r = ok_record(all[size_t(i)], 1);
    if (i > 0) r.timeline = {{0, "compute", "attend", 0, 0.25 * i}};
    writer.append(r);
  }
  writer.finish(3);
  const std::string text = read_file_text(directory + "/result.json", "");
  EXPECT_EQ(text.find("timeline"), std::string::npos);
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(text, HasSubstr(concat("\n  {\"id\":\"", all[size_t(i)].id, "\",")));
  EXPECT_THAT(text, HasSubstr("}\n ],\n \"summary\": {\n  \"verdict\": \"incomplete\",\n"));
  const std::string timelines = read_file_text(directory + "/timelines.jsonl", "");
  EXPECT_EQ(std::ranges::count(timelines, '\n'), 2);
  EXPECT_TRUE(timelines.starts_with(concat("{\"id\":\"", all[1].id, "\",\"timeline\":[{")));

  for (const char* name : {"run.json", "points.jsonl"})  // as published
    std::filesystem::remove(directory + "/" + name);
  EXPECT_THAT(timeline_ends(directory), ElementsAre(0, 0.25, 0.5));
  EXPECT_THAT(timeline_ends(directory + "/result.json"), ElementsAre(0, 0.25, 0.5));
}

TEST(ResultWriter, TimelinesOfPointsMeasuredAgainGo) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  PointRecord r = ok_record(points()[0], 1);
  r.timeline = {{0, "compute", "attend", 0, 1}};
  writer.append(r);
  writer.finish(1);
  r.timeline.clear();
  writer.append(r);
  writer.finish(1);
  EXPECT_FALSE(std::filesystem::exists(writer.directory() + "/timelines.jsonl"));
}

TEST(ReadResult, TakesTimelinesThatStandInTheResult) {  // as those of older results do
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  PointRecord r = ok_record(points()[0], 1);
  r.timeline = {{0, "compute", "attend", 0, 1}};
  writer.append(r);
  writer.finish(1);
  JsonNode n = parse_json(read_file_text(writer.directory() + "/result.json", ""), "r");
  n.find("points")->items[0] = parse_json(record_to_json(r), "p");
  EXPECT_THAT(timeline_ends(folder.write("result.json", dump_json(n, 1))), ElementsAre(1));
}

TEST(ResultWriter, ASimulatedRunKeepsItsCluster) {
  const TemporaryFolder folder;
  Result options = head();
  options.run.cluster =
      parse_json(R"({"name": "two nodes", "nodes": {"value": 2, "source": "chosen"}})", "c");
  options.run.cluster_sha256 = std::string(64, 'a');
  auto writer = ResultWriter::create(options, folder.path("results"));
  writer.append(ok_record(points()[0], 1));
  writer.finish(1);
  const Result r = read_result(writer.directory());
  EXPECT_EQ(r.run.cluster.text("name"), "two nodes");
  EXPECT_EQ(r.run.cluster_sha256, options.run.cluster_sha256);
}

TEST(ReadResult, OldRunsNameTheirModeAsTransport) {
  const TemporaryFolder folder;
  const auto run_of = [&](const std::string& run) {
    folder.write("run.json", concat(R"({"schema_version": 1, "run": )", run, "}"));
    return read_result(folder.path()).run;
  };
  EXPECT_EQ(run_of(R"({"transport": "virtual"})").mode, "virtual");
  EXPECT_EQ(run_of(R"({"transport": "virtual"})").transport, "");
  EXPECT_EQ(run_of(R"({"transport": "mpi"})").mode, "real");
  EXPECT_EQ(run_of(R"({"transport": null, "mode": "simulated"})").mode, "simulated");
}

TEST(ResultWriter, FollowsNoLinks) {
  const TemporaryFolder folder;
  const std::string directory = ResultWriter::create(head(), folder.path("results")).directory();
  const std::string target = folder.write("elsewhere", "");
  std::filesystem::remove(directory + "/points.jsonl");
  std::filesystem::create_symlink(target, directory + "/points.jsonl");
  EXPECT_THROW(ResultWriter::resume(directory, head()), Error);
}

TEST(ResultWriter, NeverOverwrites) {
  const TemporaryFolder folder;
  Result o = head();
  auto first = ResultWriter::create(o, folder.path("results"));
  auto second = ResultWriter::create(o, folder.path("results"));  // within the same second
  EXPECT_NE(first.directory(), second.directory());
  o.path = first.directory();
  EXPECT_THAT(usage_error([&] { ResultWriter::create(o, folder.path("results")); }),
              AllOf(HasSubstr("is not empty"), HasSubstr("--resume " + o.path)));
  o.run.mode = "simulated";  // such runs are not resumed
  EXPECT_THAT(usage_error([&] { ResultWriter::create(o, folder.path("results")); }),
              AllOf(HasSubstr("is not empty"), HasSubstr("or delete it")));
  o.path = folder.write("file", "");
  EXPECT_THAT(usage_error([&] { ResultWriter::create(o, folder.path("results")); }),
              HasSubstr("is a file, not a folder"));
  o.path = folder.path("fresh/deep");
  EXPECT_EQ(ResultWriter::create(o, folder.path("results")).directory(), folder.path("fresh/deep"));
  o.path = "/proc/nowhere";
  EXPECT_THAT(usage_error([&] { ResultWriter::create(o, folder.path("results")); }),
              HasSubstr("cannot create the folder"));
}

TEST(ResultWriter, ValidatesWhatItIsGiven) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  PointRecord r = ok_record(points()[0], 1);
  r.work.share_of_peak = 3;
  EXPECT_EQ(writer.append(r).status, PointStatus::kError);
  EXPECT_EQ(read_result(writer.directory()).points[0].status, PointStatus::kError);
}

TEST(ReadResult, RefusesValuesOfAnotherKind) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  for (const Point& p : points()) writer.append(ok_record(p, 1));
  writer.finish(6);
  const std::string path = writer.directory() + "/result.json";
  const JsonNode whole = parse_json(read_file_text(path, ""), path);
  const auto refusal = [&](const JsonNode& changed) -> std::string {
    std::ofstream(path) << dump_json(changed);
    try {
      read_result(path);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  };
  for (const std::string& key : whole.keys) {
    if (key == "schema_version") continue;
    JsonNode changed = whole;
    changed.set(key, 7);
    EXPECT_THAT(refusal(changed), testing::AllOf(HasSubstr(key), HasSubstr("damaged"))) << key;
  }
  JsonNode changed = whole;
  changed.find("points")->items[0].find("timing")->set("median_s", "fast");
  EXPECT_THAT(refusal(changed), HasSubstr("median_s: a string cannot stand here"));
  for (const JsonNode& none : {JsonNode(), JsonNode::object()}) {
    changed.set("points", none);
    EXPECT_THAT(refusal(changed), HasSubstr("points: must be a list"));
  }
  changed.take("points");
  EXPECT_THAT(refusal(changed), HasSubstr("points: must be a list"));
  EXPECT_EQ(refusal(whole), "");
}

TEST(ReadResult, RefusesForeignFilesAndDamage) {
  const TemporaryFolder folder;
  EXPECT_THAT(usage_error([&] { read_result(folder.path("none")); }), HasSubstr("cannot read"));
  EXPECT_THAT(usage_error([&] { read_result(folder.write("a.json", "{}")); }),
              HasSubstr("no result of lnbench"));
  std::string directory;
  {
    auto writer = ResultWriter::create(head(), folder.path("results"));
    directory = writer.directory();
    writer.append(ok_record(points()[0], 1));
  }
  std::ofstream(directory + "/points.jsonl", std::ios::app)
      << "{ damaged }\n"
      << record_to_json(ok_record(points()[1], 1)) << "\n";
  EXPECT_THAT(usage_error([&] { read_result(directory); }), HasSubstr("points.jsonl:2:"));
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }),
              HasSubstr("damaged line 2 of points.jsonl; delete that line to measure the point "
                        "again"));
}

// Secrets in the environment reach no file and no text.
TEST(Canary, AppearsInNoOutput) {
  const std::string canary = "canary-5f2c91";
  for (const char* name : {"OMPI_MCA_secret_token", "OMP_API_KEY", "SLURM_JWT", "GITHUB_TOKEN",
                           "OMPI_MCA_password", "LNBENCH_SECRET", "AWS_SESSION", "gomp_Key"})
    ::setenv(name, canary.c_str(), 1);
  ::setenv("OMP_PROC_BIND", "close", 1);
  const TemporaryFolder folder;
  Result o = head();
  EXPECT_EQ(o.environment.variables.at("OMP_PROC_BIND"), "close");
  auto writer = ResultWriter::create(o, folder.path("results"));
  for (const Point& p : points()) writer.append(ok_record(p, 1));
  writer.finish(6);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    ++files;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text.find(canary), std::string::npos) << entry.path();
  }
  EXPECT_EQ(files, 3);
  EXPECT_EQ(dump_json(to_json(o.environment)).find(canary), std::string::npos);
  const Result r = read_result(writer.directory());
  std::ostringstream table;
  write_comparison(compare_results(r, r), {.wide = true, .out = &table});
  EXPECT_EQ(table.str().find(canary), std::string::npos);
}

// A folder for scripts/validate_json_test.py.
TEST(SampleResult, IsWrittenForTheSchemaCheck) {
  const char* target = std::getenv("LONGNET_SAMPLE_RESULT");
  if (!target) GTEST_SKIP() << "LONGNET_SAMPLE_RESULT names no folder";
  std::filesystem::remove_all(target);
  const TemporaryFolder folder;
  Result o = head();
  o.path = target;
  auto writer = ResultWriter::create(o, folder.path("results"));
  const auto all = points();
  for (const Point& p : all) writer.append(ok_record(p, 1e-3));
  PointRecord skipped = make_record(all[0]), full = ok_record(all[1], 0.5);
  skipped.status = PointStatus::kSkippedMemory;
  skipped.reason = "needs 3 TiB, the limit is 8 GiB";
  writer.append(skipped);
  full.comm = {1, 1, 2, 2};
  full.work.flops = 3.5e21;
  full.work.coverage = {1.0, 0.5};
  full.memory.by_tag = {{"kv", 4}};
  full.memory.measured_peak_bytes = 9;
  full.per_rank = {{0, 0.5}, {1, NAN}};
  full.check = {.status = "pass", .reference = "double", .max_rel_error = 1e-7};
  full.work.balance = 0.5;
  full.ablations = {.full_s = 0.5, .compute_only_s = 0.25};
  full.params.pattern = sparse_pattern(64, 8);
  full.metrics = {{"measured_share", 1.0}};
  full.timeline = {{0, "compute", "attend", 0, 0.5}};
  writer.append(full);
  writer.finish(6);
}

}  // namespace
}  // namespace longnet
