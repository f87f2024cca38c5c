/* The recurrence of simulator/engine/streams.py and contention.py in C: the same starts and ends, to the
 * tick. An op starts when the op before it on its stream and the ops it waits for have ended, a collective
 * when all members of its rendezvous have arrived; collectives in flight on the same rank class proceed at
 * rates that a callback gives. Times are whole ticks in int64; products of two of them take 128 bits.
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
        PyErr_SetString(PyExc_TypeError, "arrays of int64 are wanted");
        return NULL;
    }
    *count = view->len / (Py_ssize_t)sizeof(int64_t);
    return view->buf;
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
    for (int i = 0; i < buffers->count; i++) PyBuffer_Release(&buffers->held[i]);
    free(buffers->held);
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

static PyMethodDef methods[] = {
    {"run", run_tasks, METH_VARARGS, "Fill in the starts and ends of all tasks' ops."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_recurrence", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__recurrence(void) { return PyModule_Create(&module); }
