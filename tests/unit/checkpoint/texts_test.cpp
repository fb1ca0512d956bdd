// Index, manifest and folder names, damaged field by field; tilings, metadata and page edges
// against counting every byte.
#include <fstream>
#include <map>
#include <random>
#include <set>

#include <nlohmann/json.hpp>

#include "checkpoint/index.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/page_edges.hpp"
#include "fixture.hpp"
#include "trireme/checkpoint/position.hpp"

namespace trireme::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// ---- the index ----

IndexEntry entry_of(std::vector<int64_t> shape, std::vector<base::Block> blocks) {
  IndexEntry entry;
  entry.path = "/t";
  entry.type = StoredType::f32;
  entry.shape = std::move(shape);
  for (const auto& block : blocks) {
    entry.slabs.push_back({block, entry.digests.size()});
    entry.digests.push_back({entry.digests.size(), 7});  // one piece: these are small
  }
  return entry;
}

std::string refusal(const std::string& bytes) {
  std::string message;
  EXPECT_EQ(code_of([&] { index_from_bytes(bytes, "the index"); }, &message), ExitCode::bad_data);
  EXPECT_THAT(message, HasSubstr("the index"));
  return message;
}
std::string refusal(const IndexEntry& entry) { return refusal(to_bytes({entry})); }

TEST(IndexFields, EachIsRefusedByName) {
  const auto good = entry_of({10, 4}, {{0, 10, 0, 4}});
  EXPECT_THAT(index_from_bytes(to_bytes({good}), "the index"), SizeIs(1));
  IndexEntry bad = good;
  bad.shape = {-1, 4};
  EXPECT_THAT(refusal(bad), HasSubstr("/t has the dimension -1"));
  bad.shape = std::vector<int64_t>(9, 1);
  EXPECT_THAT(refusal(bad), HasSubstr("/t has 9 dimensions"));
  bad = good;
  bad.offset = -8;
  EXPECT_THAT(refusal(bad), HasSubstr("/t has the offset -8"));
  bad = good;
  bad.type = static_cast<StoredType>(8);
  EXPECT_THAT(refusal(bad), HasSubstr("/t has the unknown type 8"));
  bad = good;
  bad.digests.push_back({});
  EXPECT_THAT(refusal(bad), HasSubstr("/t has 2 digests where its slabs need 1"));
  bad.digests.clear();
  EXPECT_THAT(refusal(bad), HasSubstr("/t has 0 digests where its slabs need 1"));
  EXPECT_THAT(refusal(to_bytes({good}) + '\0'), HasSubstr("bytes after its last entry"));
  EXPECT_THAT(refusal("TRIREMEJ" + to_bytes({good}).substr(8)),
              HasSubstr("is not the index of a checkpoint"));
}

TEST(IndexFields, SlabsLieInsideTheirTensor) {
  constexpr int64_t large = INT64_MAX;
  for (const base::Block& block : std::vector<base::Block>{{0, 11, 0, 4},
                                                           {1, 10, 0, 4},
                                                           {-1, 2, 0, 4},
                                                           {10, 1, 0, 4},
                                                           {0, 0, 0, 4},
                                                           {0, -1, 0, 4},
                                                           {0, 10, 0, 5},
                                                           {0, 10, 1, 4},
                                                           {0, 10, -1, 2},
                                                           {0, 10, 4, 1},
                                                           {0, 10, 0, 0},
                                                           {large, 1, 0, 4},
                                                           {0, large, 0, 4},
                                                           {0, 10, large, 1},
                                                           {0, 10, 0, large},
                                                           {-large, large, 0, 4}}) {
    IndexEntry entry = entry_of({10, 4}, {block});
    EXPECT_THAT(refusal(entry), HasSubstr("a slab of /t lies outside of it"))
        << block.row << ' ' << block.rows << ' ' << block.column << ' ' << block.columns;
  }
}

TEST(IndexFields, SizesThatNoIntegerHolds) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{INT64_MAX},
                                         {int64_t{1} << 61, 1},
                                         {int64_t{1} << 40, int64_t{1} << 40},
                                         {int64_t{1} << 62, 2}}) {
    std::string message;
    EXPECT_EQ(
        code_of([&] { index_from_bytes(to_bytes({entry_of(shape, {})}), "the index"); }, &message),
        ExitCode::bad_data)
        << message;
  }
  EXPECT_EQ(index_from_bytes(to_bytes({entry_of({(int64_t{1} << 61) - 1}, {})}), "the index")
                .front()
                .bytes(),
            INT64_MAX - 3);
}

TEST(IndexFields, TensorsOfNothingAndOfOne) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {0}, {0, 5}, {5, 0}, {1, 1, 1}}) {
    const bool one = shape.size() != 1 && (shape.empty() || shape.size() == 3);
    const auto entry =
        entry_of(shape, one ? std::vector<base::Block>{{0, 1, 0, 1}} : std::vector<base::Block>{});
    const auto read = index_from_bytes(to_bytes({entry}), "the index");
    EXPECT_EQ(read.at(0).elements(), one ? 1 : 0);
    EXPECT_EQ(code_of([&] { check_tiling(read.at(0)); }), ExitCode::done);
  }
}

// ---- tilings: count how often each element is held ----

bool held_once(const IndexEntry& entry) {
  std::map<std::pair<int64_t, int64_t>, int> held;
  for (const Slab& slab : entry.slabs) {
    for (int64_t r = 0; r < slab.block.rows; ++r) {
      for (int64_t c = 0; c < slab.block.columns; ++c)
        ++held[{slab.block.row + r, slab.block.column + c}];
    }
  }
  return static_cast<int64_t>(held.size()) == entry.elements() &&
         std::all_of(held.begin(), held.end(), [](const auto& one) { return one.second == 1; });
}

void split(std::mt19937& random, const base::Block& block, int depth,
           std::vector<base::Block>& out) {
  base::Block a = block, b = block;
  const bool rows = random() % 2 == 0;
  const int64_t size = rows ? block.rows : block.columns;
  if (depth == 0 || size < 2) return out.push_back(block);
  const int64_t head = 1 + static_cast<int64_t>(random()) % (size - 1);
  (rows ? a.rows : a.columns) = head;
  (rows ? b.rows : b.columns) = size - head;
  (rows ? b.row : b.column) += head;
  split(random, a, depth - 1, out);
  split(random, b, depth - 1, out);
}

TEST(Tiling, IsWhatHoldsEveryElementOnce) {
  std::mt19937 random(11);
  int good = 0, bad = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto rows = 1 + static_cast<int64_t>(random() % 7),
               columns = 1 + static_cast<int64_t>(random() % 7);
    std::vector<base::Block> blocks;
    split(random, {0, rows, 0, columns}, 4, blocks);
    std::shuffle(blocks.begin(), blocks.end(), random);
    base::Block& one = blocks[random() % blocks.size()];
    const base::Block& other = blocks[random() % blocks.size()];
    switch (random() % 5) {
      case 0: one.row = static_cast<int64_t>(random()) % (rows - one.rows + 1); break;
      case 1: one.column = static_cast<int64_t>(random()) % (columns - one.columns + 1); break;
      case 2: one = other; break;
      case 3: blocks.pop_back(); break;
      default: break;
    }
    const auto entry = entry_of({rows, columns}, blocks);
    const ExitCode code = code_of([&] { check_tiling(entry); });
    ASSERT_EQ(code, held_once(entry) ? ExitCode::done : ExitCode::bad_data) << "round " << round;
    ++(code == ExitCode::done ? good : bad);
  }
  EXPECT_GT(good, 300);
  EXPECT_GT(bad, 300);
}

// ---- what belongs to no dataset ----

TEST(Metadata, IsEveryByteThatNoDatasetHas) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto size = static_cast<int64_t>(random() % 200);
    std::vector<bool> taken(static_cast<size_t>(size), false);
    std::vector<IndexEntry> entries;
    for (int64_t at = 0; at < size;) {
      const int64_t bytes = std::min<int64_t>(static_cast<int64_t>(random() % 20), size - at);
      if (random() % 2 == 0) {
        IndexEntry entry = entry_of({bytes}, {});
        entry.type = StoredType::u8;
        entry.offset = at;  // those of no bytes lie anywhere
        entries.push_back(entry);
        for (int64_t b = at; b < at + bytes; ++b) taken[static_cast<size_t>(b)] = true;
      }
      at += std::max<int64_t>(bytes, 1);
    }
    std::shuffle(entries.begin(), entries.end(), random);
    int64_t end = -1;
    for (const ByteRange& range : metadata_ranges(entries, size)) {
      EXPECT_GT(range.begin, end) << "in order, and neighbours are one range";
      EXPECT_LT(range.begin, range.end);
      end = range.end;
      for (int64_t b = range.begin; b < range.end; ++b) {
        ASSERT_FALSE(taken.at(static_cast<size_t>(b)));
        taken[static_cast<size_t>(b)] = true;
      }
    }
    EXPECT_EQ(std::count(taken.begin(), taken.end(), false), 0);
  }
}

TEST(Metadata, OffsetsBeyondTheFile) {
  IndexEntry entry = entry_of({4}, {});
  for (const int64_t offset : {int64_t{85}, int64_t{100}, int64_t{101}, INT64_MAX}) {
    entry.offset = offset;
    EXPECT_EQ(code_of([&] { metadata_ranges({entry}, 100); }), ExitCode::bad_data) << offset;
  }
  entry.offset = 84;
  EXPECT_THAT(metadata_ranges({entry}, 100), SizeIs(1));
}

// ---- pages with one writer ----

TEST(PageEdges, EveryByteGoesToTheOwnerOfItsPageOnce) {
  const auto& world = test::world();
  constexpr int64_t page = 16, size = 1000;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);  // the same on every rank
    std::vector<int> writer(size, -1);
    for (int64_t at = 0; at < size;) {
      const int64_t run = 1 + static_cast<int64_t>(random() % 40);
      const int who =
          static_cast<int>(random() % static_cast<uint32_t>(world.size() + 1)) - 1;  // -1: nobody
      for (int64_t b = at; b < std::min(at + run, size); ++b) writer[static_cast<size_t>(b)] = who;
      at += run;
    }
    const auto content = [](int64_t b) { return static_cast<char>('a' + b * 7 % 26); };
    std::vector<PageEdge> mine;
    for (int64_t b = 0; b < size; ++b) {
      if (writer[static_cast<size_t>(b)] != world.rank()) continue;
      if (mine.empty() || mine.back().end() != b || b % page == 0) mine.push_back({b, ""});
      mine.back().bytes += content(b);
    }
    std::shuffle(mine.begin(), mine.end(), random);
    std::set<int64_t> got;
    int64_t end = -1;
    for (const PageEdge& edge : edges_of_my_pages(world, mine, page)) {
      EXPECT_GT(edge.offset, end) << "in order, neighbours joined";
      end = edge.end();
      for (int64_t b = edge.offset; b < end; ++b) {
        EXPECT_EQ(b / page % world.size(), world.rank());
        EXPECT_EQ(edge.bytes[static_cast<size_t>(b - edge.offset)], content(b));
        EXPECT_TRUE(got.insert(b).second);
      }
    }
    for (int64_t b = 0; b < size; ++b) {
      ASSERT_EQ(got.contains(b),
                writer[static_cast<size_t>(b)] >= 0 && b / page % world.size() == world.rank())
          << "byte " << b << " seed " << seed;
    }
  }
}

// ---- manifests and folders ----

FullManifest manifest_of(int64_t step, int64_t fence) {
  FullManifest m;
  m.format = format_version;
  m.step = step;
  m.fence = fence;
  m.world_size = 4;
  m.data_bytes = 3;
  m.index_bytes = 2;
  m.metadata_digest = "00";
  m.index_digest = "11";
  return m;
}

TEST(ManifestFields, EachIsNeededAndNamed) {
  const auto whole = nlohmann::ordered_json::parse(to_json(manifest_of(7, 2)));
  const auto message_of = [](const nlohmann::ordered_json& json) {
    std::string message;
    EXPECT_EQ(code_of([&] { manifest_from_json(json.dump(2) + "\n", "m.json"); }, &message),
              ExitCode::bad_data);
    return message;
  };
  for (const auto& [key, value] : whole.items()) {
    auto without = whole;
    without.erase(key);
    const bool read = key != "sha256" && key != "program";
    EXPECT_THAT(message_of(without),
                read ? HasSubstr("'" + key + "'") : HasSubstr("m.json does not fit its SHA-256"));
    auto other = whole;
    other[key] = nullptr;
    EXPECT_THAT(
        message_of(other),
        read ? HasSubstr("m.json lacks a field or has one of another type") : HasSubstr("SHA-256"));
  }
  for (const char* key : {"format", "step", "fence", "world_size"}) {
    for (const auto& value : {nlohmann::ordered_json(1.5555e66), nlohmann::ordered_json(1.0),
                              nlohmann::ordered_json("1")}) {
      auto no_whole_number = whole;
      no_whole_number[key] = value;
      EXPECT_THAT(message_of(no_whole_number),
                  HasSubstr("m.json lacks a field or has one of another type"))
          << key << " " << value;
    }
  }
  auto newer = whole;
  newer["format"] = format_version + 1;
  EXPECT_THAT(message_of(newer), HasSubstr("m.json has format 2; this program reads 1"));
  auto more = whole;
  more["more"] = 1;
  EXPECT_THAT(message_of(more), HasSubstr("SHA-256")) << "what is not read is not believed";
  EXPECT_EQ(code_of([&] { manifest_from_json(whole.dump() + "\n", "m.json"); }), ExitCode::bad_data)
      << "the same values in another layout";
}

TEST(ManifestFields, NumbersComeBackWhole) {
  FullManifest m = manifest_of(INT64_MAX, INT64_MAX - 1);
  m.saved = "2026-11-21T14:03:33Z";
  m.config_digest = "\"\\\n\u00e9";
  const auto read = manifest_from_json(to_json(m), "m");
  EXPECT_EQ(read.step, INT64_MAX);
  EXPECT_EQ(read.fence, INT64_MAX - 1);
  EXPECT_EQ(read.config_digest, m.config_digest);
  EXPECT_EQ(read.data_bytes, 3);
  EXPECT_EQ(read.index_bytes, 2);
}

class Folder : public testing::Test {
 protected:
  void checkpoint(const std::string& name, int64_t step, int64_t fence) const {
    std::filesystem::create_directories(folder.path() / name);
    write(name + "/data.h5", "abc");
    write(name + "/index.bin", "ab");
    write(name + "/manifest.json", to_json(manifest_of(step, fence)));
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder.path() / name) << text;
  }
  const SharedFolder folder{comm::CommView{}};
};

TEST_F(Folder, TheLaterFenceIsFirstThenTheLaterStep) {
  for (const auto& [step, fence] : std::vector<std::pair<int64_t, int64_t>>{
           {5, 1}, {2, 3}, {9, 2}, {10, 2}, {1234567, 1}, {0, 3}})
    checkpoint(folder_name(step), step, fence);
  EXPECT_THAT(list_steps(folder.path()), ElementsAre(1234567, 10, 9, 5, 2, 0));
  EXPECT_THAT(list_committed(folder.path()),
              ElementsAre(Position{3, 2}, Position{3, 0}, Position{2, 10}, Position{2, 9},
                          Position{1, 1234567}, Position{1, 5}));
}

TEST_F(Folder, WhatIsNoCheckpointIsNotCounted) {
  checkpoint("step-000001", 1, 1);
  write("step-000002", "a file");
  for (const char* name : {"step-00003", "step-000004.old", ".step-000005.1.tmp", "step-0000006",
                           "Step-000007", "step-+00008", "step-00000x"})
    checkpoint(name, 3, 9);
  std::filesystem::create_symlink("nowhere", folder.path() / "step-000009");
  EXPECT_THAT(list_steps(folder.path()), ElementsAre(1));
  std::vector<std::string> not_whole;
  EXPECT_THAT(list_committed(folder.path(), &not_whole), ElementsAre(Position{1, 1}));
  EXPECT_THAT(not_whole, IsEmpty());
}

TEST_F(Folder, WhatIsNotWholeIsNamed) {
  for (const int64_t step : {1, 2, 3, 4, 5}) checkpoint(folder_name(step), step, 1);
  std::filesystem::remove(folder.path() / "step-000001/manifest.json");
  std::filesystem::remove(folder.path() / "step-000002/index.bin");
  write("step-000003/data.h5", "ab");
  write("step-000004/manifest.json", "");
  std::vector<std::string> not_whole;
  EXPECT_THAT(list_committed(folder.path(), &not_whole), ElementsAre(Position{1, 5}));
  EXPECT_THAT(not_whole,
              ElementsAre(HasSubstr("step-000004/manifest.json"),
                          HasSubstr("step-000003/data.h5 has 2 bytes, its manifest says 3"),
                          HasSubstr("step-000002/index.bin is missing"),
                          HasSubstr("step-000001 has no manifest.json")));
  EXPECT_THAT(list_committed(folder.path() / "absent"), IsEmpty());
  EXPECT_THAT(list_committed(folder.path() / "step-000005/data.h5"), IsEmpty())
      << "a file is no folder";
}

TEST_F(Folder, ARenamedOneIsNamedAndNotCounted) {
  checkpoint("step-000004", 4, 1);
  checkpoint("step-000009", 2, 1);
  std::vector<std::string> not_whole;
  EXPECT_THAT(list_committed(folder.path(), &not_whole), ElementsAre(Position{1, 4}));
  EXPECT_THAT(not_whole, ElementsAre(HasSubstr("step-000009 holds step 2 by its manifest")));
}

// Every step has one folder name, and every such name one step.
TEST_F(Folder, NamesGoThereAndBack) {
  for (const int64_t step :
       {int64_t{0}, int64_t{1}, int64_t{999999}, int64_t{1000000}, int64_t{123456789012345678}})
    EXPECT_EQ(step_of(folder_name(step)), step);
  for (const char* name : {"step-0000001", "step-0999999", "step-0000000",
                           "step-000000000000000001", "step-1234567890123456789", "step-", ""}) {
    EXPECT_EQ(step_of(name), -1) << name;
  }
}

}  // namespace
}  // namespace trireme::checkpoint
