// Byte strings and point-to-point messages, whole and cut into pieces, and the life of
// communicators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "comm/mpi_support.hpp"
#include "support/world.hpp"

namespace trireme::comm {
namespace {

using test::world;

// Runs `body` with messages in one piece and cut after 7 bytes.
template <class Body>
void whole_and_in_pieces(Body body) {
  const int64_t before = max_count;
  for (const int64_t limit : {before, int64_t{7}}) {
    max_count = limit;
    SCOPED_TRACE(testing::Message() << "pieces of " << limit);
    body();
  }
  max_count = before;
}

// What `from` sends to `to`: any bytes, a zero first, of a length that differs by pair and is often
// 0.
std::string text_for(int from, int to) {
  std::string out;
  const int length = (from + to) % 3 == 0 ? 0 : 5 + 11 * from + 3 * to;
  for (int i = 0; i < length; ++i) out += static_cast<char>(i * (from + 2) + i * i * to);
  return out;
}

TEST(Strings, GatherOnEveryRootInRankOrder) {
  std::vector<std::string> want;
  for (int rank = 0; rank < world().size(); ++rank) want.push_back(text_for(rank, 1));
  const std::string& mine = want[static_cast<size_t>(world().rank())];
  whole_and_in_pieces([&] {
    EXPECT_EQ(world().all_gather(mine), want);
    for (int root = 0; root < world().size(); ++root) {
      EXPECT_EQ(world().gather(mine, root),
                world().rank() == root ? want : std::vector<std::string>{})
          << "root " << root;
    }
  });
}

TEST(Strings, NothingAnywhereIsAnEmptyStringFromEachRank) {
  EXPECT_EQ(world().all_gather(""), std::vector<std::string>(static_cast<size_t>(world().size())));
  EXPECT_EQ(world().broadcast("", 0), "");
}

TEST(Strings, BroadcastReplacesWhatIsThereWhateverItsLength) {
  whole_and_in_pieces([] {
    for (int root = 0; root < world().size(); ++root) {
      const std::string here(static_cast<size_t>(20 * ((world().rank() + root) % 3)), 'x');
      const std::string from_root = text_for(root, 2) + "end";
      EXPECT_EQ(world().broadcast(world().rank() == root ? from_root : here, root), from_root)
          << "root " << root;
    }
  });
}

TEST(Strings, AllToAllSwapsSenderAndReceiver) {
  std::vector<std::string> to, want;
  for (int peer = 0; peer < world().size(); ++peer) {
    to.push_back(text_for(world().rank(), peer));
    want.push_back(text_for(peer, world().rank()));
  }
  whole_and_in_pieces([&] { EXPECT_EQ(world().all_to_all(to), want); });
}

TEST(Values, StructuresOfEveryRank) {
  struct Point {
    int32_t rank;
    double where;
  };
  const auto points = world().gather_values(Point{world().rank(), world().rank() / 8.0});
  ASSERT_EQ(points.size(), static_cast<size_t>(world().size()));
  for (int rank = 0; rank < world().size(); ++rank) {
    EXPECT_EQ(points[static_cast<size_t>(rank)].rank, rank);
    EXPECT_EQ(points[static_cast<size_t>(rank)].where, rank / 8.0);
  }
}

int next() { return (world().rank() + 1) % world().size(); }
int previous() { return (world().rank() + world().size() - 1) % world().size(); }

TEST(Transfers, TagsTellMessagesApartInAnyOrder) {
  if (world().size() == 1) GTEST_SKIP() << "needs a peer";
  constexpr int messages = 12;
  whole_and_in_pieces([] {
    std::vector<std::string> out, in(messages);
    std::vector<Request> pending;
    for (int tag = 0; tag < messages; ++tag) out.push_back(text_for(world().rank(), tag));
    for (int tag = messages - 1; tag >= 0; --tag) {  // received in the opposite order
      auto& buffer = in[static_cast<size_t>(tag)];
      buffer.assign(text_for(previous(), tag).size(), '?');
      pending.push_back(world().receive_begin(buffer.data(), static_cast<int64_t>(buffer.size()),
                                              previous(), Tag{tag}));
    }
    for (int tag = 0; tag < messages; ++tag) {
      const auto& text = out[static_cast<size_t>(tag)];
      pending.push_back(
          world().send_begin(text.data(), static_cast<int64_t>(text.size()), next(), Tag{tag}));
    }
    for (auto& request : pending) request.wait();
    for (int tag = 0; tag < messages; ++tag)
      EXPECT_EQ(in[static_cast<size_t>(tag)], text_for(previous(), tag)) << "tag " << tag;
  });
}

TEST(Transfers, BlockingOnesOfAnyLength) {
  if (world().size() == 1) GTEST_SKIP() << "needs a peer";
  whole_and_in_pieces([] {
    for (const size_t length : {0, 1, 6, 7, 8, 1000}) {
      const std::string out(length, static_cast<char>('a' + world().rank()));
      std::string in(length, '?');
      const auto send = [&] {
        world().send(out.data(), static_cast<int64_t>(length), next(), Tag{3});
      };
      if (world().rank() > 0) send();  // rank 0 breaks the ring
      world().receive(in.data(), static_cast<int64_t>(length), previous(), Tag{3});
      if (world().rank() == 0) send();
      EXPECT_EQ(in, std::string(length, static_cast<char>('a' + previous())));
    }
  });
}

TEST(Transfers, RequestsCompleteByTestByAssignmentAndByTheirEnd) {
  Request nothing;
  EXPECT_TRUE(nothing.test());
  nothing.wait();
  if (world().size() == 1) GTEST_SKIP() << "needs a peer";
  std::vector<int64_t> out{10, 11, 12}, in(3, -1);
  for (auto& value : out) value += 100 * world().rank();
  {
    std::vector<Request> sends;
    for (int i = 0; i < 3; ++i)
      sends.push_back(world().send_begin(&out[static_cast<size_t>(i)], 8, next(), Tag{i}));
    Request received = world().receive_begin(&in[0], 8, previous(), Tag{0});
    while (!received.test()) std::this_thread::yield();
    EXPECT_TRUE(received.test()) << "done stays done";
    received = world().receive_begin(&in[1], 8, previous(), Tag{1});
    received = world().receive_begin(&in[2], 8, previous(), Tag{2});  // waits for the one before
    EXPECT_EQ(in[1], 11 + 100 * previous());
  }
  EXPECT_EQ(in, (std::vector<int64_t>{10 + 100 * previous(), 11 + 100 * previous(),
                                      12 + 100 * previous()}));
}

// ---- communicators ----

// Counts the communicators that MPI frees, by an attribute's destructor.
class Frees {
 public:
  Frees() { MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &count, &key_, nullptr); }
  ~Frees() { MPI_Comm_free_keyval(&key_); }
  void watch(const CommView& comm) const {
    MPI_Comm_set_attr(static_cast<MPI_Comm>(comm.native()), key_, const_cast<int*>(&freed_));
  }
  int freed() const { return freed_; }

 private:
  static int count(MPI_Comm, int, void* value, void*) {
    ++*static_cast<int*>(value);
    return MPI_SUCCESS;
  }
  int key_ = MPI_KEYVAL_INVALID;
  int freed_ = 0;
};

TEST(Comm, IsFreedOnceAndWithItsLastUser) {
  Frees frees;
  {
    Comm first = Comm::duplicate(world(), "first");
    frees.watch(first);
    Comm moved = std::move(first);
    EXPECT_EQ(frees.freed(), 0);
    EXPECT_EQ(moved->sum(1), world().size());
  }
  EXPECT_EQ(frees.freed(), 1);
  CommView view;
  {
    const Comm owner = Comm::duplicate(world(), "viewed");
    frees.watch(owner);
    view = owner.view();
  }
  EXPECT_EQ(view.sum(1), world().size()) << "a view keeps it";
  view = {};
  EXPECT_EQ(frees.freed(), 2);
}

TEST(Comm, AReplacedOneIsFreed) {
  Frees frees;
  Comm comm = Comm::duplicate(world(), "old");
  frees.watch(comm);
  comm = Comm::duplicate(world(), "new");
  EXPECT_EQ(frees.freed(), 1);
  EXPECT_EQ(comm->name(), "new");
}

TEST(Comm, ADuplicateDoesNotHearTheOthersMessages) {
  if (world().size() == 1) GTEST_SKIP() << "needs a peer";
  const Comm other = Comm::duplicate(world(), "other");
  std::array<int64_t, 2> in{}, out{1, 2};
  auto a = world().receive_begin(&in[0], 8, previous(), Tag{9});
  auto b = other->receive_begin(&in[1], 8, previous(), Tag{9});
  other->send_begin(&out[1], 8, next(), Tag{9}).wait();
  world().send_begin(&out[0], 8, next(), Tag{9}).wait();
  b.wait();
  a.wait();
  EXPECT_EQ(in, out);
}

TEST(Comm, KeysOrderTheRanksOfAColour) {
  const int n = world().size();
  const Comm turned = Comm::split(world(), 5, -world().rank(), "turned");
  EXPECT_EQ(turned->size(), n);
  EXPECT_EQ(turned->rank(), n - 1 - world().rank());
  EXPECT_EQ(turned->name(), "turned");
  const Comm equal_keys = Comm::split(world(), 0, 7, "equal");
  EXPECT_EQ(equal_keys->rank(), world().rank()) << "then by the parent's ranks";
}

TEST(Comm, WhoIsLeftOutHasARankOfItsOwn) {
  const bool in = world().rank() == world().size() - 1;
  const Comm last = Comm::split(world(), in ? 1 : -1, 0, "last");
  EXPECT_EQ(last->size(), 1);
  EXPECT_EQ(last->rank(), 0);
  EXPECT_EQ(last->name(), in ? "last" : "self");
  EXPECT_EQ(last->sum(41), 41);
  EXPECT_EQ(Comm::subset(world(), {}, "nobody")->name(), "self");
}

// A null view is one rank: the same calls, no MPI.
TEST(Comm, TheNullViewDoesWhatOneRankDoes) {
  const CommView none;
  std::vector<float> data{1, 2, 3};
  none.all_reduce(data.data(), 3, DType::f32, Op::sum);
  none.broadcast(data.data(), 3, DType::f32, 0);
  none.all_gather_in_place(data.data(), 3, DType::f32);
  EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
  none.sleeping_barrier();
  EXPECT_EQ(none.gather("a", 0), std::vector<std::string>{"a"});
  EXPECT_EQ(none.all_to_all({"b"}), std::vector<std::string>{"b"});
  EXPECT_EQ(none.gather_values(4), std::vector<int>{4});
  EXPECT_FALSE(none.all(false));
  char byte = 0;
  EXPECT_THROW(none.receive(&byte, 1, 0, Tag{0}), InternalError);
  EXPECT_THROW(none.send_begin(&byte, 1, 0, Tag{0}), InternalError);
  EXPECT_THROW(none.receive_begin(&byte, 1, 0, Tag{0}), InternalError);
  EXPECT_EQ(Comm::duplicate(none, "copy")->name(), "self");
}

TEST(Session, SaysWhetherAllRanksFailedAlike) {
  const Session session;  // joins the MPI that runs
  EXPECT_EQ(session.world().size(), world().size());
  EXPECT_TRUE(session.all_failed_alike(66, 60));
  EXPECT_EQ(session.all_failed_alike(world().rank() == 0 ? 66 : 65, 60), world().size() == 1);
}

}  // namespace
}  // namespace trireme::comm
