// Cluster files: shipped files load, every problem is reported, written files are read back.
#include "simulate/cluster.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "core/testing/test_support.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path clusters() { return fs::path(LONGNET_SOURCE_DIR) / "configs" / "clusters"; }
std::string h100() { return read_file_text((clusters() / "h100-ndr400.json").string(), ""); }
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Cluster, EveryShippedFileLoadsAndRoundTrips) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(clusters())) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const ClusterSpec c = load_cluster(entry.path().string());
    EXPECT_THAT(read_file_text(entry.path().string(), ""), testing::Not(HasSubstr("assum")))
        << "every number has a source: " << entry.path();
    EXPECT_EQ(c.name, entry.path().stem().string());
    const std::string text = cluster_to_json(c);
    EXPECT_EQ(cluster_to_json(parse_cluster(text, "again")), text) << entry.path();
  }
  EXPECT_GE(files, 4);
}

TEST(Cluster, ReadsNumbersWithTheirSources) {
  const ClusterSpec c = parse_cluster(h100(), "h100");
  EXPECT_EQ(c.num_gpus(), 4096);
  EXPECT_EQ(c.inter.bandwidth_bytes_per_s.value, 48.5e9);
  EXPECT_THAT(c.inter.bandwidth_bytes_per_s.source, HasSubstr("NDR"));
  EXPECT_EQ(c.inter.alpha_s.of(AlphaSet::kNcclSimple), 14e-6);
  EXPECT_EQ(c.topology.kind, TopologyKind::kFatTree);
  EXPECT_EQ(c.overlap_efficiency.value, 1);  // the file does not say
}

TEST(Cluster, SchemaListsTheCollectives) {
  const fs::path path = clusters().parent_path() / "schema" / "cluster.schema.json";
  const JsonNode schema = parse_json(read_file_text(path.string(), ""), "schema");
  const JsonNode& keys = *schema.find("properties")->find("collectives")->find("properties");
  for (const std::string key : {"all_gather", "all_to_all", "reduce_scatter"}) {
    std::vector<std::string> words;
    for (const JsonNode& word : keys.find(key)->find("enum")->items) words.push_back(word.string);
    JsonNode cluster = parse_json(h100(), "h100");
    cluster.find("collectives")->set(key, "xyzzy");
    EXPECT_THAT(usage_error([&] { parse_cluster(dump_json(cluster), "c.json"); }),
                HasSubstr("known: " + join(words, ", ")));
  }
}

TEST(Cluster, ReportsEveryProblemWithItsPlace) {
  const auto error_of = [](const std::string& text) {
    return usage_error([&] { parse_cluster(text, "c.json"); });
  };
  EXPECT_THAT(error_of(replaced(h100(), "\"topology\"", "\"topolgy\"")),
              HasSubstr("did you mean 'topology'?"));
  EXPECT_THAT(
      error_of(replaced(h100(), "\"source\": \"NVIDIA DGX H100 data sheet\"", "\"source\": \"\"")),
      HasSubstr("gpus_per_node.source: is missing"));
  EXPECT_THAT(
      error_of(replaced(h100(), "\"value\": 48500000000.0", "\"value\": 0")),
      HasSubstr("links.inter.bandwidth_bytes_per_s.value: must be a number at least 1e+06 and "
                "at most 1e+30"));
  EXPECT_THAT(error_of(replaced(h100(), "\"value\": 512", "\"value\": 512.5")),
              HasSubstr("nodes.value: must be whole"));
  EXPECT_THAT(error_of(replaced(h100(), "\"nccl_ll\": 2.7e-06,", "")),
              HasSubstr("links.inter.alpha_s.nccl_ll: is missing"));
  EXPECT_THAT(error_of(replaced(h100(), "\"value\": true", "\"value\": false")),
              HasSubstr("async_progress"));
  EXPECT_THAT(error_of(replaced(h100(), "\"nccl_ring\"", "\"nccl_pat\"")),
              HasSubstr("collectives.all_gather: NCCL's PAT needs one GPU per node"));
  EXPECT_THAT(error_of(replaced(h100(), "\"value\": 0.00758", "\"value\": 0.2424")),
              HasSubstr("links.intra.device_share: of 32 channels is 7.7568 of a device"));
  EXPECT_THAT(error_of(replaced(h100(), "\"fa2\": {", "\"fa4\": {")),
              HasSubstr("device.backward_splits.fa4: unknown"));
  EXPECT_THAT(error_of("{}"), HasSubstr("c.json:1: schema_version: is missing"));
  EXPECT_THAT(error_of("{}"), HasSubstr("c.json:1: links: is missing"));
  for (const char* nodes : {"3e9", "1e300", "4000000"})
    EXPECT_NE(error_of(replaced(h100(), "\"value\": 512", concat("\"value\": ", nodes))), "")
        << nodes;
}

// One error, with the form that is expected.
TEST(Cluster, WhatIsNoObjectIsOneError) {
  const auto error_with = [](std::vector<std::string> path, const JsonNode& value) {
    JsonNode cluster = parse_json(h100(), "h100");
    JsonNode* at = &cluster;
    for (size_t i = 0; i + 1 < path.size(); ++i) at = at->find(path[i]);
    at->set(path.back(), value);
    return usage_error([&] { parse_cluster(dump_json(cluster), "c.json"); });
  };
  const std::string form = "\n  hint: write { \"value\": 1, \"source\": \"...\" }";
  EXPECT_EQ(error_with({"nodes"}, 512), "c.json:1: nodes: must be an object, is an integer" + form);
  EXPECT_EQ(error_with({"links", "inter", "overhead_s"}, 1e-7),
            "c.json:1: links.inter.overhead_s: must be an object, is a number" + form);
  EXPECT_EQ(error_with({"links", "inter", "alpha_s"}, 1.5e-6),
            "c.json:1: links.inter.alpha_s: must be an object, is a number\n"
            "  hint: write { \"value\": 1e-6, \"source\": \"...\" }");
  EXPECT_EQ(error_with({"async_progress"}, true),
            "c.json:1: async_progress: must be an object, is a boolean\n"
            "  hint: write { \"value\": ..., \"source\": \"...\" }");
  EXPECT_THAT(
      error_with({"device", "attend"}, JsonNode::array().push(3)),
      testing::StartsWith("c.json:1: device.attend[0]: must be an object, is an integer\n"));
  EXPECT_EQ(usage_error([] { parse_cluster("3", "c.json"); }),
            "c.json:1: must be an object, is an integer\n  hint: write { \"key\": value, ... }");
}

TEST(Cluster, NumbersThatNoMachineHasAreRefused) {
  using Path = std::vector<std::string>;
  for (const auto& [path, wrong] : std::vector<std::pair<Path, std::vector<double>>>{
           {{"device", "memory_bandwidth_bytes_per_s"}, {1e-300, 0.5, 1e31}},
           {{"device", "launch_s"}, {-1, 1e7}},
           {{"device", "fill_rows"}, {-1, 1e10}},
           {{"links", "intra", "bandwidth_bytes_per_s"}, {1e-300, 0.5, 1e31}},
           {{"links", "inter", "call_s"}, {-1, 1e7}},
           {{"links", "inter", "ports_per_node"}, {0, 4097, 9.3e18}},
           {{"gpus_per_node"}, {0, 1e12}},
           {{"topology", "taper"}, {1e-300, 1e7}},
           {{"overlap_efficiency"}, {1e-300, 1.5}},
           {{"error"}, {1e-300, 1e7}}})
    for (const double value : wrong) {
      JsonNode cluster = parse_json(h100(), "c.json");
      cluster.set("overlap_efficiency", parse_json(R"({"value": 1, "source": "s"})", "q"));
      JsonNode* node = &cluster;
      for (const std::string& key : path) node = node->find(key);
      node->set("value", value);
      EXPECT_THAT(usage_error([&] { parse_cluster(dump_json(cluster), "c.json"); }),
                  HasSubstr(join(path, ".") + ".value: must be a number at least"))
          << value;
    }
}

TEST(Cluster, WhatIfScalesOrReplaces) {
  const ClusterSpec c = parse_cluster(h100(), "h100");
  const WhatIf w = parse_what_if("bandwidth=0.5,taper=2,gpus_per_node=4,straggler=0.2");
  EXPECT_EQ(w.text(), "bandwidth=0.5 gpus_per_node=4 straggler=0.2 taper=2");
  const ClusterSpec changed = apply(c, w);
  EXPECT_EQ(changed.inter.bandwidth_bytes_per_s.value, 24.25e9);
  EXPECT_EQ(changed.topology.taper.value, 2);
  EXPECT_EQ(changed.num_gpus(), 4096);
  EXPECT_EQ(changed.inter.ports_per_node.value, 4);
  EXPECT_EQ(apply(c, parse_what_if("host=4.5e-05")).host_s.value, 4.5e-5);
  EXPECT_TRUE(parse_what_if("").is_plain());
  for (const char* wrong :
       {"bandwith=1", "bandwidth", "bandwidth=x", "bandwidth=0", "overlap=2", "nodes=1.5",
        "latency=-1", "straggler=0.2@", "straggler=0.2@1.5", "straggler=0.2x0", "straggler=-1",
        "straggler=x8", "straggler=0.2@-1", "nodes=1e9", "gpus_per_node=9e18", "bandwidth=1e300",
        "bandwidth=1e-300", "overlap=1e-300"})
    EXPECT_NE(usage_error([&] { parse_what_if(wrong); }), "") << wrong;
  for (const char* large : {"nodes=16777216", "nodes=16777216,gpus_per_node=16777216"})
    EXPECT_NE(usage_error([&] { apply(c, parse_what_if(large)); }), "") << large;
}

TEST(Cluster, StragglersAreNamedOrCounted) {
  EXPECT_EQ(parse_what_if("straggler=0.2").straggler, (Straggler{.slower = 0.2}));
  EXPECT_EQ(parse_what_if("straggler=0.2@17").straggler, (Straggler{.slower = 0.2, .rank = 17}));
  EXPECT_EQ(parse_what_if("straggler=0.2x8").straggler, (Straggler{.slower = 0.2, .count = 8}));
  EXPECT_EQ(parse_what_if("straggler=0.2@17,taper=2").text(), "straggler=0.2@17 taper=2");
  EXPECT_EQ(parse_what_if("straggler=0.2x8").text(), "straggler=0.2x8");
  EXPECT_TRUE(parse_what_if("straggler=0@17").is_plain());
  const Straggler three{.slower = 1, .count = 3};
  std::vector<Rank> slow;
  for (Rank r = 0; r < 8; ++r)
    if (three.is(r, 8)) slow.push_back(r);
  EXPECT_THAT(slow, testing::ElementsAre(0, 2, 5));
}

}  // namespace
}  // namespace longnet
