#include "comm/life_messages.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

#include "trireme/base/stopwatch.hpp"

namespace trireme::comm {
namespace {

constexpr int sign_tag = static_cast<int>(Tag::life_sign);
constexpr int answer_tag = static_cast<int>(Tag::life_answer);
constexpr int most_unanswered =
    8;  // a rank 0 that stands still gets no more: its memory is not ours to fill

template <size_t N>
void put(char (&into)[N], const std::string& text) {
  std::snprintf(into, N, "%s", text.c_str());
}

// Long paths keep their end, which says most.
template <size_t N>
void put_end(char (&into)[N], const std::string& text) {
  put(into, text.size() < N ? text : "..." + text.substr(text.size() - (N - 4)));
}

bool done(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  int flag = 0;
  return MPI_Test(&request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag != 0;
}

void cancel(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return;
  MPI_Cancel(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

}  // namespace

LifeMessages::LifeMessages(const CommView& world)
    : comm_(Comm::duplicate(world, "watchdog")),
      peers_(leads() ? static_cast<size_t>(world.size()) : 0),
      heard_(std::max<size_t>(1, peers_.size())) {
  for (int rank = 1; rank < static_cast<int>(peers_.size()); ++rank) listen(rank);
  hear();
}

void LifeMessages::listen(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  TRIREME_MPI(
      MPI_Irecv(&peer.in, sizeof peer.in, MPI_BYTE, rank, sign_tag, handle(), &peer.receiving));
}

void LifeMessages::hear() {
  TRIREME_MPI(
      MPI_Irecv(&in_, sizeof in_, MPI_BYTE, MPI_ANY_SOURCE, answer_tag, handle(), &hearing_));
}

void LifeMessages::report(const LifeSign& sign) {
  hear_wish(sign.wish);
  if (leads()) {
    heard_[0] = sign;
    return;
  }
  if (unanswered_ >= most_unanswered || !done(sending_)) return;
  out_ = {};
  out_.silent = sign.silent;
  out_.answers = sign.written.answers;
  out_.tokens = sign.written.tokens;
  out_.waiting = sign.waiting;
  out_.io = sign.io;
  out_.wish = sign.wish;
  put(out_.host, sign.host);
  put_end(out_.where, sign.where);
  put_end(out_.call, sign.call);
  TRIREME_MPI(MPI_Isend(&out_, sizeof out_, MPI_BYTE, 0, sign_tag, handle(), &sending_));
  ++unanswered_;
}

void LifeMessages::answer(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!done(peer.answering)) return;
  peer.out = {0, wish_};
  TRIREME_MPI(
      MPI_Isend(&peer.out, sizeof peer.out, MPI_BYTE, rank, answer_tag, handle(), &peer.answering));
}

void LifeMessages::receive() {
  for (int rank = 1; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    while (done(peer.receiving)) {
      const Frame& in = peer.in;
      heard_[static_cast<size_t>(rank)] =
          LifeSign{in.silent, in.waiting != 0, in.io != 0, in.host,
                   in.where,  in.call,         in.wish,    {in.answers, in.tokens}};
      hear_wish(in.wish);
      listen(rank);
      answer(rank);
    }
  }
  while (!ended_ && done(hearing_)) {
    if (in_.head.ends != 0) {
      ended_ = in_.words;
      break;
    }
    heard_[0] = LifeSign{};  // only rank 0 answers
    hear_wish(in_.head.wish);
    unanswered_ = 0;
    hear();
  }
}

std::vector<std::optional<LifeSign>> LifeMessages::take_heard() {
  std::vector<std::optional<LifeSign>> out(heard_.size());
  out.swap(heard_);
  return out;
}

void LifeMessages::end_job(const std::string& words) {
  if (!ending_.empty()) return;  // others have been told, and MPI may still read the words
  ending_.assign(static_cast<size_t>(comm_->size()), MPI_REQUEST_NULL);
  verdict_.head = {1, wish_};
  put(verdict_.words, words);
  for (int rank = 0; rank < comm_->size(); ++rank) {
    if (rank == comm_->rank()) continue;
    MPI_Isend(&verdict_, sizeof verdict_, MPI_BYTE, rank, answer_tag, handle(),
              &ending_[static_cast<size_t>(rank)]);
  }
}

// Messages that were sent before the barrier and that nobody listens for any more.
void LifeMessages::drain() {
  for (int flag = 1; flag != 0;) {
    MPI_Status status;
    TRIREME_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle(), &flag, &status));
    if (flag == 0) break;
    std::vector<char> waste(sizeof(Words) + sizeof(Frame));
    TRIREME_MPI(MPI_Recv(waste.data(), static_cast<int>(waste.size()), MPI_BYTE, status.MPI_SOURCE,
                         status.MPI_TAG, handle(), MPI_STATUS_IGNORE));
  }
}

void LifeMessages::begin_leaving() { TRIREME_MPI(MPI_Ibarrier(handle(), &leaving_)); }

bool LifeMessages::all_leave() { return done(leaving_); }

void LifeMessages::finish() {
  TRIREME_MPI(MPI_Barrier(handle()));  // nobody sends from here on
  const base::Stopwatch watch;
  const auto all_sent = [&] {
    bool sent = done(sending_);
    for (Peer& peer : peers_) sent = done(peer.answering) && sent;
    return sent;
  };
  while (!all_sent() && watch.seconds() < 5) receive();
  for (Peer& peer : peers_) cancel(peer.receiving);
  cancel(hearing_);
  TRIREME_MPI(MPI_Barrier(handle()));
  drain();
}

void LifeMessages::abandon(std::unique_ptr<LifeMessages> messages) {
  // MPI may still write into it; and freeing the communicator would wait for the others.
  [[maybe_unused]] LifeMessages* kept = messages.release();
}

}  // namespace trireme::comm
