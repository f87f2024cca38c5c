/* The core, over arrays of int64: what runs once for every op of a step. Each part has a slow twin in
 * Python, which says what it computes and why, and which tests hold it equal to:
 *
 *   run       when each op starts and ends    simulator/engine/streams.py and contention.py, on SimPy
 *   flow      what each op waits for, and     workload/dataflow.py
 *             when buffers come and go
 *   windows   collectives beside compute      simulator/engine/interference.py
 *   issue     waits for the host              simulator/costs/kernel_launch.py
 *   schedule  slots of a pipeline             simulator/pipeline/schedule_sim.py
 *
 * Times are whole ticks; products of two of them take 128 bits.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define NORMAL 1
#define LAST 2
#define MOST_IN_FLIGHT 64

typedef __int128 wide;

/* The recurrence: an op starts when the op before it on its stream and the ops it waits for have ended, a
 * collective when all members of its rendezvous have arrived; collectives in flight on the same rank class
 * proceed at rates that a callback gives.
 */

typedef struct { int head, tail; } List; /* of streams, linked by `next` */

typedef struct {
    int64_t *wait_offsets, *waits, *durations, *floors, *meetings, *signatures, *start, *end;
    List *waiters;
    int number, ops;
} Task;

typedef struct {
    int64_t *ops, clock, wait;
    int count, at, task, phase, next;
} Stream;

typedef struct {
    int64_t begin, end;
    int missing, contends, contended, first, members;
    List waiting;
} Meeting;

typedef struct {
    int64_t alone, left, since, lasts;
    int signature, meeting, changes, over, disturbed;
} Transfer;

typedef struct { int64_t time; uint64_t number; int priority, kind, a, b; } Event;
enum { BEGIN, SETTLE, END };

typedef struct { int count, axes[MOST_IN_FLIGHT]; } State;
typedef struct { int *transfers, count, room, state; } Class;

typedef struct {
    Task *tasks; int task_count;
    Stream *streams; int stream_count;
    Meeting *meetings; int meeting_count;
    int64_t *members, *axes_of; /* of meetings, by signature */
    Class *classes; int class_count;
    Transfer *transfers; int transfer_count, transfer_room;
    int *disturbed, disturbed_count, disturbed_room;
    State *states; int state_count, state_room;
    int64_t **rates; int signature_count, rate_states; /* [state][signature], each by class */
    Event *events; int event_count, event_room;
    uint64_t numbers;
    int *ready, ready_head, ready_count;
    int64_t now;
    PyObject *rate;
} Engine;

static int grown(void **array, int *room, int count, size_t size) {
    if (count < *room) return 0;
    int more = *room ? 2 * *room : 64;
    void *found = realloc(*array, (size_t)more * size);
    if (!found) { PyErr_NoMemory(); return -1; }
    *array = found;
    *room = more;
    return 0;
}

static int added(int64_t a, int64_t b, int64_t *sum) {
    if (__builtin_add_overflow(a, b, sum)) {
        PyErr_SetString(PyExc_OverflowError, "a time of more than 63 bits");
        return -1;
    }
    return 0;
}

/* Events: a heap by time, then priority, then the order in which they were scheduled. */

static int sooner(const Event *a, const Event *b) {
    if (a->time != b->time) return a->time < b->time;
    if (a->priority != b->priority) return a->priority < b->priority;
    return a->number < b->number;
}

static int schedule(Engine *e, int64_t time, int priority, int kind, int a, int b) {
    if (grown((void **)&e->events, &e->event_room, e->event_count, sizeof(Event))) return -1;
    Event event = {time, e->numbers++, priority, kind, a, b};
    int at = e->event_count++;
    while (at && sooner(&event, &e->events[(at - 1) / 2])) {
        e->events[at] = e->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    e->events[at] = event;
    return 0;
}

static Event soonest(Engine *e) {
    Event first = e->events[0], last = e->events[--e->event_count];
    int at = 0, child;
    while ((child = 2 * at + 1) < e->event_count) {
        if (child + 1 < e->event_count && sooner(&e->events[child + 1], &e->events[child])) child++;
        if (!sooner(&e->events[child], &last)) break;
        e->events[at] = e->events[child];
        at = child;
    }
    e->events[at] = last;
    return first;
}

/* Streams that wait, and those that are ready. */

static void wait_in(Engine *e, List *list, int stream) {
    e->streams[stream].next = NONE;
    if (list->tail == NONE) list->head = stream;
    else e->streams[list->tail].next = stream;
    list->tail = stream;
}

static void resume(Engine *e, List *list) {
    for (int stream = list->head; stream != NONE; stream = e->streams[stream].next) {
        e->ready[(e->ready_head + e->ready_count) % e->stream_count] = stream;
        e->ready_count++;
    }
    list->head = list->tail = NONE;
}

/* Contention. */

static int state_of(Engine *e, const Class *class) {
    State state = {0};
    for (int i = 0; i < class->count; i++) {
        int axes = (int)e->axes_of[e->transfers[class->transfers[i]].signature], at = state.count++;
        if (state.count > MOST_IN_FLIGHT) {
            PyErr_SetString(PyExc_RuntimeError, "more collectives in flight than streams");
            return -1;
        }
        for (; at && state.axes[at - 1] > axes; at--) state.axes[at] = state.axes[at - 1];
        state.axes[at] = axes;
    }
    for (int i = 0; i < e->state_count; i++)
        if (e->states[i].count == state.count &&
            !memcmp(e->states[i].axes, state.axes, (size_t)state.count * sizeof(int)))
            return i;
    if (grown((void **)&e->states, &e->state_room, e->state_count, sizeof(State))) return -1;
    size_t row = (size_t)e->signature_count * sizeof(int64_t *);
    int64_t **rates = realloc(e->rates, (size_t)(e->state_count + 1) * row + 1);
    if (!rates) { PyErr_NoMemory(); return -1; }
    e->rates = rates;
    memset(rates + (size_t)e->state_count * (size_t)e->signature_count, 0, row);
    e->states[e->state_count] = state;
    return e->state_count++;
}

/* How long a collective lasts with a state's in flight all the time, by class. */
static const int64_t *rates_of(Engine *e, int signature, int state) {
    int64_t **known = &e->rates[(size_t)state * (size_t)e->signature_count + (size_t)signature];
    if (*known) return *known;
    PyObject *axes = PyTuple_New(e->states[state].count), *found = NULL;
    if (!axes) return NULL;
    for (int i = 0; i < e->states[state].count; i++) {
        PyObject *number = PyLong_FromLong(e->states[state].axes[i]);
        if (!number || PyTuple_SetItem(axes, i, number)) { Py_DECREF(axes); return NULL; }
    }
    PyObject *which = PyLong_FromLong(signature);
    if (which) found = PyObject_CallFunctionObjArgs(e->rate, which, axes, NULL);
    Py_XDECREF(which);
    Py_DECREF(axes);
    if (!found) return NULL;
    int64_t *ticks = malloc((size_t)e->class_count * sizeof(int64_t));
    if (!ticks) PyErr_NoMemory();
    for (int i = 0; ticks && i < e->class_count; i++) {
        PyObject *each = PySequence_GetItem(found, i);
        ticks[i] = each ? PyLong_AsLongLong(each) : -1;
        Py_XDECREF(each);
        if (PyErr_Occurred()) { free(ticks); ticks = NULL; }
    }
    Py_DECREF(found);
    /* The callback may have run nothing of this engine, so `known` still points into the table. */
    return *known = ticks;
}

static int disturb(Engine *e, const Meeting *meeting) {
    int was_set = e->disturbed_count > 0;
    for (int i = 0; i < meeting->members; i++) {
        Class *class = &e->classes[e->members[meeting->first + i]];
        for (int j = 0; j < class->count; j++) {
            Transfer *transfer = &e->transfers[class->transfers[j]];
            if (transfer->disturbed) continue;
            if (grown((void **)&e->disturbed, &e->disturbed_room, e->disturbed_count, sizeof(int)))
                return -1;
            transfer->disturbed = 1;
            e->disturbed[e->disturbed_count++] = class->transfers[j];
        }
    }
    return e->disturbed_count && !was_set ? schedule(e, e->now, LAST, SETTLE, 0, 0) : 0;
}

static int begin_transfer(Engine *e, int signature, int number) {
    Meeting *meeting = &e->meetings[number];
    const int64_t *alone = rates_of(e, signature, 0);
    if (!alone) return -1;
    if (grown((void **)&e->transfers, &e->transfer_room, e->transfer_count, sizeof(Transfer))) return -1;
    int64_t ticks = alone[e->members[meeting->first]];
    if (ticks <= 0) {
        PyErr_SetString(PyExc_ZeroDivisionError, "a collective that takes no time for some rank");
        return -1;
    }
    int own = e->transfer_count++;
    e->transfers[own] = (Transfer){ticks, ticks, 0, 0, signature, number, 0, 0, 0};
    for (int i = 0; i < meeting->members; i++) {
        Class *class = &e->classes[e->members[meeting->first + i]];
        if (grown((void **)&class->transfers, &class->room, class->count, sizeof(int))) return -1;
        class->transfers[class->count++] = own;
        if ((class->state = state_of(e, class)) < 0) return -1;
    }
    return disturb(e, meeting);
}

static int settle(Engine *e) {
    for (int i = 0; i < e->disturbed_count; i++) {
        Transfer *t = &e->transfers[e->disturbed[i]];
        t->disturbed = 0;
        if (t->over) continue;
        Meeting *meeting = &e->meetings[t->meeting];
        int64_t lasts = 0;
        for (int j = 0; j < meeting->members; j++) {
            int64_t class = e->members[meeting->first + j];
            const int64_t *rates = rates_of(e, t->signature, e->classes[class].state);
            if (!rates) return -1;
            if (rates[class] > lasts) lasts = rates[class];
        }
        if (lasts == t->lasts) continue;
        if (t->lasts) t->left -= (int64_t)((wide)(e->now - t->since) * t->alone / t->lasts);
        t->since = e->now;
        t->lasts = lasts;
        t->changes++;
        wide ends_in = ((wide)t->left * lasts + t->alone - 1) / t->alone;
        if (ends_in > INT64_MAX - e->now) {
            PyErr_SetString(PyExc_OverflowError, "a time of more than 63 bits");
            return -1;
        }
        if (schedule(e, e->now + (int64_t)ends_in, NORMAL, END, e->disturbed[i], t->changes)) return -1;
    }
    e->disturbed_count = 0;
    return 0;
}

static int end_transfer(Engine *e, int number, int changes) {
    Transfer *t = &e->transfers[number];
    if (changes != t->changes) return 0;
    Meeting *meeting = &e->meetings[t->meeting];
    t->over = 1;
    for (int i = 0; i < meeting->members; i++) {
        Class *class = &e->classes[e->members[meeting->first + i]];
        int kept = 0;
        for (int j = 0; j < class->count; j++)
            if (class->transfers[j] != number) class->transfers[kept++] = class->transfers[j];
        class->count = kept;
        if ((class->state = state_of(e, class)) < 0) return -1;
    }
    if (disturb(e, meeting)) return -1;
    meeting->end = e->now;
    resume(e, &meeting->waiting);
    return 0;
}

/* Streams. */

static int arrive(Engine *e, Task *task, int op, int64_t clock) {
    int number = (int)task->meetings[op];
    Meeting *meeting = &e->meetings[number];
    meeting->missing--;
    if (clock > meeting->begin) meeting->begin = clock;
    if (meeting->missing) return 0;
    meeting->contended = meeting->contends && task->durations[op] > 0;
    if (!meeting->contended) {
        resume(e, &meeting->waiting);
        return 0;
    }
    int signature = (int)task->signatures[op];
    if (meeting->begin > e->now) return schedule(e, meeting->begin, NORMAL, BEGIN, signature, number);
    return begin_transfer(e, signature, number);
}

enum { WAITS, ARRIVED };

/* Walk a stream until it has to wait; -1 with an exception set. */
static int walk(Engine *e, int number) {
    Stream *s = &e->streams[number];
    Task *task = &e->tasks[s->task];
    while (s->at < s->count) {
        int op = (int)s->ops[s->at];
        if (s->phase == WAITS) {
            for (; s->wait < task->wait_offsets[op + 1]; s->wait++) {
                int64_t awaited = task->waits[s->wait];
                if (task->end[awaited] < 0) {
                    wait_in(e, &task->waiters[awaited], number);
                    return 0;
                }
                if (task->end[awaited] > s->clock) s->clock = task->end[awaited];
            }
            if (task->floors && task->floors[op] > s->clock) s->clock = task->floors[op];
            task->start[op] = s->clock;
            if (task->meetings[op] != NONE) {
                s->phase = ARRIVED;
                if (arrive(e, task, op, s->clock)) return -1;
            }
        }
        if (s->phase == ARRIVED) {
            Meeting *meeting = &e->meetings[task->meetings[op]];
            if (meeting->missing || (meeting->contended && meeting->end < 0)) {
                wait_in(e, &meeting->waiting, number);
                return 0;
            }
            s->clock = task->start[op] = meeting->begin;
            if (meeting->contended) s->clock = meeting->end;
            else if (added(s->clock, task->durations[op], &s->clock)) return -1;
        } else if (added(s->clock, task->durations[op], &s->clock)) return -1;
        task->end[op] = s->clock;
        resume(e, &task->waiters[op]);
        s->phase = WAITS;
        if (++s->at < s->count) s->wait = task->wait_offsets[s->ops[s->at]];
    }
    return 0;
}

static int walk_all(Engine *e) {
    while (e->ready_count) {
        int stream = e->ready[e->ready_head];
        e->ready_head = (e->ready_head + 1) % e->stream_count;
        e->ready_count--;
        if (walk(e, stream)) return -1;
    }
    return 0;
}

static int run(Engine *e) {
    if (walk_all(e)) return -1;
    for (uint64_t done = 0; e->event_count; done++) {
        if (!(done & 0xffff) && PyErr_CheckSignals()) return -1;
        Event event = soonest(e);
        e->now = event.time;
        int failed = event.kind == SETTLE  ? settle(e)
                     : event.kind == BEGIN ? begin_transfer(e, event.a, event.b)
                                           : end_transfer(e, event.a, event.b);
        if (failed || walk_all(e)) return -1;
    }
    for (int i = 0; i < e->stream_count; i++)
        if (e->streams[i].at < e->streams[i].count) {
            PyErr_SetString(PyExc_AssertionError, "a stream never came to its end");
            return -1;
        }
    return 0;
}

/* Python's side: arrays of int64 through the buffer protocol. */

typedef struct { Py_buffer *held; int count, room; } Buffers;

static int64_t *array_of(Buffers *buffers, PyObject *object, Py_ssize_t *count, int writable) {
    if (grown((void **)&buffers->held, &buffers->room, buffers->count, sizeof(Py_buffer))) return NULL;
    Py_buffer *view = &buffers->held[buffers->count];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO)) return NULL;
    buffers->count++;
    if (view->itemsize != sizeof(int64_t)) {
        PyErr_SetString(PyExc_TypeError, "arrays must be of int64");
        return NULL;
    }
    *count = view->len / (Py_ssize_t)sizeof(int64_t);
    return view->buf;
}

static void release_buffers(Buffers *buffers) {
    for (int i = 0; i < buffers->count; i++) PyBuffer_Release(&buffers->held[i]);
    free(buffers->held);
}

enum { WAIT_OFFSETS, AWAITED, DURATIONS, FLOORS, MEETINGS, SIGNATURES, START, STOP, STREAM_OFFSETS,
       STREAM_OPS, ARRAYS };

static int read_task(Engine *e, Buffers *buffers, PyObject *about, Task *task, int number) {
    int64_t *found[ARRAYS];
    Py_ssize_t counts[ARRAYS];
    PyObject *own = PyTuple_GetItem(about, 0);
    if (!own) return -1;
    task->number = (int)PyLong_AsLong(own);
    if (PyErr_Occurred()) return -1;
    for (int i = 0; i < ARRAYS; i++) {
        PyObject *object = PyTuple_GetItem(about, i + 1);
        if (!object) return -1;
        found[i] = NULL;
        counts[i] = 0;
        if (i == FLOORS && object == Py_None) continue;
        found[i] = array_of(buffers, object, &counts[i], i == START || i == STOP);
        if (!found[i] && PyErr_Occurred()) return -1;
    }
    task->ops = (int)counts[DURATIONS];
    task->wait_offsets = found[WAIT_OFFSETS];
    task->waits = found[AWAITED];
    task->durations = found[DURATIONS];
    task->floors = found[FLOORS];
    task->meetings = found[MEETINGS];
    task->signatures = found[SIGNATURES];
    task->start = found[START];
    task->end = found[STOP];
    task->waiters = malloc((size_t)task->ops * sizeof(List) + 1);
    int streams = (int)counts[STREAM_OFFSETS] - 1;
    Stream *more = realloc(e->streams, (size_t)(e->stream_count + streams) * sizeof(Stream) + 1);
    if (more) e->streams = more;
    if (!task->waiters || !more) { PyErr_NoMemory(); return -1; }
    for (int op = 0; op < task->ops; op++) task->waiters[op] = (List){NONE, NONE};
    for (int i = 0; i < streams; i++) {
        int64_t first = found[STREAM_OFFSETS][i], count = found[STREAM_OFFSETS][i + 1] - first;
        int64_t *ops = found[STREAM_OPS] + first;
        Stream stream = {ops, 0, count ? task->wait_offsets[ops[0]] : 0, (int)count, 0, number, WAITS,
                         NONE};
        e->streams[e->stream_count++] = stream;
    }
    return 0;
}

static int read_engine(Engine *e, Buffers *buffers, PyObject *args) {
    PyObject *tasks, *meetings, *members, *axes;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "iOOOOO", &e->class_count, &tasks, &meetings, &members, &axes, &e->rate))
        return -1;
    int64_t *rows = array_of(buffers, meetings, &count, 0);
    if (!rows && PyErr_Occurred()) return -1;
    e->meeting_count = (int)(count / 4);
    e->meetings = malloc((size_t)e->meeting_count * sizeof(Meeting) + 1);
    e->members = array_of(buffers, members, &count, 0);
    if (!e->members && PyErr_Occurred()) return -1;
    e->axes_of = array_of(buffers, axes, &count, 0);
    if (!e->axes_of && PyErr_Occurred()) return -1;
    e->signature_count = (int)count;
    e->task_count = (int)PyList_Size(tasks);
    if (e->task_count < 0) return -1;
    e->tasks = calloc((size_t)e->task_count + 1, sizeof(Task));
    e->classes = calloc((size_t)e->class_count + 1, sizeof(Class));
    if (!e->meetings || !e->tasks || !e->classes) { PyErr_NoMemory(); return -1; }
    for (int i = 0; i < e->meeting_count; i++, rows += 4)
        e->meetings[i] = (Meeting){0, NONE, (int)rows[0], (int)rows[1], 0, (int)rows[2], (int)rows[3],
                                   {NONE, NONE}};
    for (int i = 0; i < e->task_count; i++)
        if (read_task(e, buffers, PyList_GetItem(tasks, i), &e->tasks[i], i)) return -1;
    e->ready = malloc((size_t)e->stream_count * sizeof(int) + 1);
    if (!e->ready) { PyErr_NoMemory(); return -1; }
    for (int i = 0; i < e->stream_count; i++) e->ready[i] = i;
    e->ready_count = e->stream_count;
    Class empty = {0};
    return state_of(e, &empty) < 0 ? -1 : 0;
}

static void release(Engine *e, Buffers *buffers) {
    for (int i = 0; i < e->state_count * e->signature_count; i++) free(e->rates[i]);
    for (int i = 0; e->tasks && i < e->task_count; i++) free(e->tasks[i].waiters);
    for (int i = 0; e->classes && i < e->class_count; i++) free(e->classes[i].transfers);
    void *every[] = {e->tasks, e->streams, e->meetings, e->classes, e->transfers, e->disturbed,
                     e->states, e->rates, e->events, e->ready};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) free(every[i]);
    release_buffers(buffers);
}

static PyObject *run_tasks(PyObject *self, PyObject *args) {
    (void)self;
    Engine e = {0};
    Buffers buffers = {0};
    int failed = read_engine(&e, &buffers, args) || run(&e);
    release(&e, &buffers);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* Flow: the rules of workload/dataflow.py. Streams and buffers are numbers, stream 0 that of compute. */

typedef struct { int64_t stream, op; int next; } Reader;

typedef struct {
    int64_t ops, streams, buffers;
    const int64_t *stream, *read_offsets, *reads, *write_offsets, *writes;
    int64_t *wait_offsets, *waits, *born, *gone;
} Flow;

/* A later op of another stream than any so far, or than the one that stands for its stream. */
static int64_t await(const Flow *f, int64_t stream, int64_t op, int64_t *first, int64_t count) {
    if (op < 0 || f->stream[op] == stream) return count;
    for (int64_t i = 0; i < count; i++)
        if (f->stream[first[i]] == f->stream[op]) {
            if (op > first[i]) first[i] = op;
            return count;
        }
    first[count] = op;
    return count + 1;
}

static int find_waits(Flow *f) {
    int64_t *writer = malloc((size_t)f->buffers * sizeof(int64_t) + 1);
    List *readers = malloc((size_t)f->buffers * sizeof(List) + 1);
    Reader *pool = malloc((size_t)f->read_offsets[f->ops] * sizeof(Reader) + 1);
    if (!writer || !readers || !pool) {
        free(writer); free(readers); free(pool);
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < f->buffers; i++) {
        writer[i] = NONE;
        readers[i] = (List){NONE, NONE};
    }
    int64_t last_compute = NONE, total = 0;
    int used = 0;
    f->wait_offsets[0] = 0;
    for (int64_t op = 0; op < f->ops; op++) {
        int64_t stream = f->stream[op], count = 0, *own = f->waits + total;
        if (stream) count = await(f, stream, last_compute, own, count);
        for (int64_t i = f->read_offsets[op]; i < f->read_offsets[op + 1]; i++)
            count = await(f, stream, writer[f->reads[i]], own, count);
        for (int64_t i = f->write_offsets[op]; i < f->write_offsets[op + 1]; i++)
            count = await(f, stream, writer[f->writes[i]], own, count);
        for (int64_t i = f->write_offsets[op]; i < f->write_offsets[op + 1]; i++) {
            int64_t buffer = f->writes[i];
            for (int at = readers[buffer].head; at != NONE; at = pool[at].next)
                count = await(f, stream, pool[at].op, own, count);
            readers[buffer] = (List){NONE, NONE};
            writer[buffer] = op;
        }
        for (int64_t i = f->read_offsets[op]; i < f->read_offsets[op + 1]; i++) {
            List *list = &readers[f->reads[i]];
            int at = list->head;
            while (at != NONE && pool[at].stream != stream) at = pool[at].next;
            if (at != NONE) {
                pool[at].op = op;
                continue;
            }
            pool[used] = (Reader){stream, op, NONE};
            if (list->tail == NONE) list->head = used;
            else pool[list->tail].next = used;
            list->tail = used++;
        }
        if (!stream) last_compute = op;
        f->wait_offsets[op + 1] = total += count;
    }
    free(writer); free(readers); free(pool);
    return 0;
}

/* When each buffer is first written, and the op behind which nobody needs it. */
static int find_lives(Flow *f) {
    int64_t *retired = malloc((size_t)f->ops * sizeof(int64_t) + 1);
    int64_t *next = malloc((size_t)f->ops * sizeof(int64_t) + 1); /* on the same stream */
    int64_t *head = malloc((size_t)f->streams * sizeof(int64_t) + 1), *tail = NULL;
    if (head) tail = malloc((size_t)f->streams * sizeof(int64_t) + 1);
    if (!retired || !next || !head || !tail) {
        free(retired); free(next); free(head); free(tail);
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < f->streams; i++) head[i] = tail[i] = NONE;
    for (int64_t i = 0; i < f->buffers; i++) f->born[i] = f->gone[i] = NONE;
    for (int64_t op = 0; op < f->ops; op++) {
        int64_t stream = f->stream[op];
        retired[op] = stream ? f->ops - 1 : op;
        for (int64_t i = f->wait_offsets[op]; i < f->wait_offsets[op + 1]; i++) {
            int64_t awaited = f->waits[i], *queue = &head[f->stream[awaited]];
            for (; *queue != NONE && *queue <= awaited; *queue = next[*queue]) retired[*queue] = op;
        }
        if (!stream) continue;
        next[op] = NONE;
        if (head[stream] == NONE) head[stream] = op;
        else next[tail[stream]] = op;
        tail[stream] = op;
    }
    for (int64_t op = 0; op < f->ops; op++) {
        for (int64_t i = f->read_offsets[op]; i < f->read_offsets[op + 1]; i++)
            if (retired[op] > f->gone[f->reads[i]]) f->gone[f->reads[i]] = retired[op];
        for (int64_t i = f->write_offsets[op]; i < f->write_offsets[op + 1]; i++) {
            int64_t buffer = f->writes[i];
            if (retired[op] > f->gone[buffer]) f->gone[buffer] = retired[op];
            if (f->born[buffer] == NONE) f->born[buffer] = op;
        }
    }
    free(retired); free(next); free(head); free(tail);
    return 0;
}

static PyObject *flow(PyObject *self, PyObject *args) {
    (void)self;
    enum { STREAM, READ_OFFSETS, READS, WRITE_OFFSETS, WRITES, WAIT_OFFSETS_, WAITS_, BORN, GONE, COUNT };
    PyObject *objects[COUNT];
    Flow f = {0};
    Buffers buffers = {0};
    int64_t *found[COUNT];
    Py_ssize_t counts[COUNT];
    long long streams;
    if (!PyArg_ParseTuple(args, "LOOOOOOOOO", &streams, &objects[0], &objects[1], &objects[2], &objects[3],
                          &objects[4], &objects[5], &objects[6], &objects[7], &objects[8]))
        return NULL;
    int failed = 0;
    for (int i = 0; i < COUNT && !failed; i++) {
        found[i] = array_of(&buffers, objects[i], &counts[i], i >= WAIT_OFFSETS_);
        failed = !found[i] && PyErr_Occurred();
    }
    if (!failed) {
        f = (Flow){counts[STREAM], streams, counts[BORN], found[STREAM], found[READ_OFFSETS],
                   found[READS], found[WRITE_OFFSETS], found[WRITES], found[WAIT_OFFSETS_],
                   found[WAITS_], found[BORN], found[GONE]};
        failed = find_waits(&f) || find_lives(&f);
    }
    release_buffers(&buffers);
    return failed ? NULL : PyLong_FromLongLong(f.ops ? f.wait_offsets[f.ops] : 0);
}

/* Windows: which compute ops run beside which collectives (simulator/engine/interference.py). */

typedef struct { int64_t stream, first, last; int carries, head, tail, open; } Window;
typedef struct { int64_t op; int next; } Member;

typedef struct {
    Window *all; int count, room;
    Member *members; int member_count, member_room;
    int *open; /* by stream */
    int *ended, ended_count, ended_room; /* in the order in which they end */
    int *opened, opened_count, opened_room; /* in the order in which they begin */
} Windows;

static int window_of(Windows *w, int64_t stream, int carries) {
    if (grown((void **)&w->all, &w->room, w->count, sizeof(Window))) return -1;
    if (grown((void **)&w->opened, &w->opened_room, w->opened_count, sizeof(int))) return -1;
    w->all[w->count] = (Window){stream, NONE, NONE, carries, NONE, NONE, 1};
    w->opened[w->opened_count++] = w->count;
    return w->open[stream] = w->count++;
}

static int end_window(Windows *w, int number) {
    if (grown((void **)&w->ended, &w->ended_room, w->ended_count, sizeof(int))) return -1;
    w->ended[w->ended_count++] = number;
    w->all[number].open = 0;
    w->open[w->all[number].stream] = NONE;
    return 0;
}

static int add_member(Windows *w, int64_t stream, int64_t op) {
    int number = w->open[stream];
    if (number != NONE && w->all[number].first >= 0) {
        if (end_window(w, number)) return -1;
        number = NONE;
    }
    if (number == NONE && (number = window_of(w, stream, 0)) < 0) return -1;
    if (grown((void **)&w->members, &w->member_room, w->member_count, sizeof(Member))) return -1;
    Window *own = &w->all[number];
    w->members[w->member_count] = (Member){op, NONE};
    if (own->tail == NONE) own->head = w->member_count;
    else w->members[own->tail].next = w->member_count;
    own->tail = w->member_count++;
    return 0;
}

static int close_window(Windows *w, int64_t stream, int64_t awaited) {
    int number = w->open[stream];
    if (number == NONE) return 0;
    Window *own = &w->all[number];
    int left = own->head;
    while (left != NONE && w->members[left].op <= awaited) left = w->members[left].next;
    if (own->first >= 0) return left == NONE ? end_window(w, number) : 0;
    own->head = left;
    own->carries = 0;
    if (left != NONE) return 0;
    own->tail = NONE;
    own->open = 0; /* nothing beside it, and nothing left of it */
    w->open[stream] = NONE;
    return 0;
}

enum { IS_COMPUTE = 1, IS_COLLECTIVE = 2 };

static int find_windows(Windows *w, int64_t ops, const int64_t *stream, const int64_t *is,
                        const int64_t *slots, const int64_t *wait_offsets, const int64_t *waits) {
    int64_t slot = NONE;
    for (int64_t op = 0; op < ops; op++) {
        if (stream[op]) {
            if ((is[op] & IS_COLLECTIVE) && add_member(w, stream[op], op)) return -1;
            continue;
        }
        for (int64_t i = wait_offsets[op]; i < wait_offsets[op + 1]; i++)
            if (close_window(w, stream[waits[i]], waits[i])) return -1;
        if (!(is[op] & IS_COMPUTE)) continue;
        int kept = 0, ends = slots[op] != slot;
        slot = slots[op];
        for (int i = 0; i < w->opened_count; i++) {
            int number = w->opened[i];
            Window *own = &w->all[number];
            if (!own->open) continue;
            if (ends && own->first >= 0) {
                if (end_window(w, number)) return -1;
                continue;
            }
            w->opened[kept++] = number;
        }
        w->opened_count = kept;
        for (int i = 0; i < kept; i++) {
            Window *own = &w->all[w->opened[i]];
            if (own->first < 0) own->first = op;
            own->last = op;
        }
    }
    return 0;
}

/* The window as Python has it: (stream, first, last, whether it carries, members...). */
static int tell_window(Windows *w, int number, PyObject *list) {
    Window *own = &w->all[number];
    PyObject *row = PyList_New(0);
    int64_t about[] = {own->stream, own->first, own->last, own->carries};
    for (int i = 0; row && i < 4; i++) {
        PyObject *each = PyLong_FromLongLong(about[i]);
        if (!each || PyList_Append(row, each)) { Py_CLEAR(row); }
        Py_XDECREF(each);
    }
    for (int at = own->head; row && at != NONE; at = w->members[at].next) {
        PyObject *each = PyLong_FromLongLong(w->members[at].op);
        if (!each || PyList_Append(row, each)) { Py_CLEAR(row); }
        Py_XDECREF(each);
    }
    int failed = !row || PyList_Append(list, row);
    Py_XDECREF(row);
    return failed;
}

static PyObject *windows(PyObject *self, PyObject *args) {
    (void)self;
    enum { STREAM, IS, SLOTS, OFFSETS, WAITS_, CARRYING, COUNT };
    PyObject *objects[COUNT], *beside = NULL, *unmatched = NULL, *result = NULL;
    int64_t *found[COUNT];
    Py_ssize_t counts[COUNT];
    Buffers buffers = {0};
    Windows w = {0};
    int streams, failed = 0;
    if (!PyArg_ParseTuple(args, "iOOOOOO", &streams, &objects[0], &objects[1], &objects[2], &objects[3],
                          &objects[4], &objects[5]))
        return NULL;
    for (int i = 0; i < COUNT && !failed; i++) {
        found[i] = array_of(&buffers, objects[i], &counts[i], 0);
        failed = !found[i] && PyErr_Occurred();
    }
    w.open = malloc((size_t)streams * sizeof(int) + 1);
    if (!w.open) { PyErr_NoMemory(); failed = 1; }
    for (int i = 0; !failed && i < streams; i++) w.open[i] = NONE;
    for (int i = 0; !failed && i < counts[CARRYING]; i++)
        failed = window_of(&w, found[CARRYING][i], 1) < 0;
    failed = failed || find_windows(&w, counts[STREAM], found[STREAM], found[IS], found[SLOTS],
                                    found[OFFSETS], found[WAITS_]);
    beside = PyList_New(0);
    unmatched = PyList_New(0);
    failed = failed || !beside || !unmatched;
    for (int i = 0; !failed && i < w.ended_count; i++) failed = tell_window(&w, w.ended[i], beside);
    for (int i = 0; !failed && i < w.opened_count; i++) {
        Window *own = &w.all[w.opened[i]];
        if (own->open) failed = tell_window(&w, w.opened[i], own->first >= 0 ? beside : unmatched);
    }
    if (!failed) result = PyTuple_Pack(2, beside, unmatched);
    Py_XDECREF(beside);
    Py_XDECREF(unmatched);
    free(w.all); free(w.members); free(w.open); free(w.ended); free(w.opened);
    release_buffers(&buffers);
    return result;
}

/* Issue: blocks last as long as the host takes to issue them (simulator/costs/kernel_launch.py). */

enum { IS_ISSUED = 1, IS_AWAITED = 2, COMMUNICATES = 4 };

static void hold_up(const int64_t *own, int64_t count, int waited, const int64_t *is, const int64_t *ticks,
                    const int64_t *each, int64_t *result) {
    int64_t sum = 0, issued = 0, kernels = 0, lasts;
    for (int64_t i = 0; i < count; i++) {
        sum += ticks[own[i]];
        issued += each[own[i]];
        kernels += !(is[own[i]] & COMMUNICATES);
    }
    lasts = sum;
    if (!waited && issued > sum) lasts = issued;
    for (int64_t i = 0, rest = sum, until = 0; waited && i < count; i++) {
        until += each[own[i]];
        if (until + rest > lasts) lasts = until + rest;
        rest -= ticks[own[i]];
    }
    if (lasts <= sum || !kernels) return;
    int64_t share = (lasts - sum) / kernels, rest = (lasts - sum) % kernels;
    for (int64_t i = 0, number = 0; i < count; i++)
        if (!(is[own[i]] & COMMUNICATES)) result[own[i]] += share + (number++ < rest);
}

static PyObject *issue(PyObject *self, PyObject *args) {
    (void)self;
    enum { BLOCK, IS, TICKS, EACH, RESULT, COUNT };
    PyObject *objects[COUNT];
    int64_t *found[COUNT];
    Py_ssize_t counts[COUNT];
    Buffers buffers = {0};
    int failed = 0;
    if (!PyArg_ParseTuple(args, "OOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4]))
        return NULL;
    for (int i = 0; i < COUNT && !failed; i++) {
        found[i] = array_of(&buffers, objects[i], &counts[i], i == RESULT);
        failed = !found[i] && PyErr_Occurred();
    }
    int64_t ops = failed ? 0 : counts[BLOCK], *own = malloc((size_t)ops * sizeof(int64_t) + 1);
    if (!own && !failed) { PyErr_NoMemory(); failed = 1; }
    for (int64_t op = 0; !failed && op < ops;) {
        int64_t block = found[BLOCK][op], count = 0, waits = NONE;
        for (; op < ops && found[BLOCK][op] == block; op++) {
            if (block == NONE || !(found[IS][op] & IS_ISSUED) || !found[TICKS][op]) continue;
            if (waits == NONE && (found[IS][op] & IS_AWAITED)) waits = count;
            own[count++] = op;
        }
        int64_t first = waits == NONE ? count : waits;
        hold_up(own, first, 0, found[IS], found[TICKS], found[EACH], found[RESULT]);
        hold_up(own + first, count - first, 1, found[IS], found[TICKS], found[EACH], found[RESULT]);
    }
    free(own);
    release_buffers(&buffers);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* Schedule: slots of all stages, and the messages between them (simulator/pipeline/schedule_sim.py). */

typedef struct { int64_t gap, step, clock; } StageRun;

typedef struct {
    const int64_t *gap_offsets, *steps, *ticks; /* of all stages, one behind another */
    const int64_t *stage_gaps;                  /* where each stage's gaps begin */
    const int64_t *message_ticks;               /* by sort: message / micro_batches */
    int64_t *start, *end, *over;                /* by gap; by message */
    int64_t *half, micro_batches;
    int *waiting;                               /* by message: the stage that waits for it */
} Schedule;

/* Run a stage until it needs a message whose end is not known; 1 when it is through. */
static int run_stage(Schedule *s, StageRun *run, int stage, int *woken) {
    *woken = NONE;
    for (; run->gap < s->stage_gaps[stage + 1]; run->gap++) {
        for (; run->step < s->gap_offsets[run->gap + 1]; run->step++) {
            int64_t message = s->steps[run->step] >> 1;
            if (s->steps[run->step] & 1) { /* it posts the message */
                if (s->half[message] < 0) {
                    s->half[message] = run->clock;
                    continue;
                }
                int64_t ready = s->half[message] > run->clock ? s->half[message] : run->clock;
                if (added(ready, s->message_ticks[message / s->micro_batches], &s->over[message])) return -1;
                if (s->waiting[message] != NONE) {
                    *woken = s->waiting[message];
                    s->waiting[message] = NONE;
                    run->step++;
                    return 2;
                }
                continue;
            }
            if (s->over[message] < 0) {
                s->waiting[message] = stage;
                return 0;
            }
            if (s->over[message] > run->clock) run->clock = s->over[message];
        }
        s->start[run->gap] = run->clock;
        if (added(run->clock, s->ticks[run->gap], &run->clock)) return -1;
        s->end[run->gap] = run->clock;
    }
    return 1;
}

static int run_stages(Schedule *s, int stages) {
    StageRun *runs = malloc((size_t)stages * sizeof(StageRun) + 1);
    int *ready = malloc((size_t)stages * sizeof(int) + 1), count = stages, through = 0, failed = 0;
    if (!runs || !ready) { PyErr_NoMemory(); failed = 1; }
    for (int i = 0; !failed && i < stages; i++) {
        int64_t first = s->stage_gaps[i];
        runs[i] = (StageRun){first, s->gap_offsets[first], 0};
        ready[i] = i;
    }
    while (!failed && count) {
        int stage = ready[--count], woken, state;
        while ((state = run_stage(s, &runs[stage], stage, &woken)) == 2) ready[count++] = woken;
        if (state < 0) failed = 1;
        else through += state;
    }
    if (!failed && through != stages) {
        PyErr_SetString(PyExc_AssertionError, "a stage waits for a message that never comes");
        failed = 1;
    }
    free(runs);
    free(ready);
    return failed;
}

static PyObject *schedule_slots(PyObject *self, PyObject *args) {
    (void)self;
    enum { GAP_OFFSETS, STEPS, SLOT_TICKS, STAGE_GAPS, MESSAGE_TICKS, STARTS, ENDS, OVER, COUNT };
    PyObject *objects[COUNT];
    int64_t *found[COUNT];
    Py_ssize_t counts[COUNT];
    Buffers buffers = {0};
    Schedule s = {0};
    long long micro_batches;
    int failed = 0;
    if (!PyArg_ParseTuple(args, "LOOOOOOOO", &micro_batches, &objects[0], &objects[1], &objects[2],
                          &objects[3], &objects[4], &objects[5], &objects[6], &objects[7]))
        return NULL;
    for (int i = 0; i < COUNT && !failed; i++) {
        found[i] = array_of(&buffers, objects[i], &counts[i], i >= STARTS);
        failed = !found[i] && PyErr_Occurred();
    }
    int64_t messages = failed ? 0 : counts[OVER];
    s = (Schedule){found[GAP_OFFSETS], found[STEPS], found[SLOT_TICKS], found[STAGE_GAPS],
                   found[MESSAGE_TICKS], found[STARTS], found[ENDS], found[OVER],
                   malloc((size_t)messages * sizeof(int64_t) + 1), micro_batches,
                   malloc((size_t)messages * sizeof(int) + 1)};
    if (!failed && (!s.half || !s.waiting)) { PyErr_NoMemory(); failed = 1; }
    for (int64_t i = 0; !failed && i < messages; i++) {
        s.half[i] = s.over[i] = NONE;
        s.waiting[i] = NONE;
    }
    failed = failed || run_stages(&s, (int)counts[STAGE_GAPS] - 1);
    free(s.half);
    free(s.waiting);
    release_buffers(&buffers);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"run", run_tasks, METH_VARARGS, "Fill in the starts and ends of all tasks' ops."},
    {"flow", flow, METH_VARARGS, "Fill in waits and lives of buffers; how many waits there are."},
    {"windows", windows, METH_VARARGS, "The windows with compute beside them, and those with none."},
    {"issue", issue, METH_VARARGS, "Add to ticks what the host holds up."},
    {"schedule", schedule_slots, METH_VARARGS, "Fill in the starts and ends of slots and messages."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
