"""Lesson 04's widget and drawings: a schedule as a picture, and two schedules compared.

    draw_schedule(simulation)     one picture of a `Simulation` of utils.theory.pipeline, or of a recorded run
    explore_schedules()           a widget; draw_schedules("1f1b", "gpipe", pipeline=4, micro_batches=8) is its picture alone
"""

from utils.widgets.pipeline_picture import draw_schedule
from utils.widgets.pipeline_run import ScheduleRun, measure_schedule
from utils.widgets.pipeline_schedules import draw_schedules, explore_schedules, schedules_sentence

__all__ = ["ScheduleRun", "draw_schedule", "draw_schedules", "explore_schedules", "measure_schedule", "schedules_sentence"]
