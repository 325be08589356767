"""Synthetic street scenes with exact labels.

A street is laid out in metres (x to the right, y up, z ahead), seen through a pinhole camera and painted from far to
near. Classes share colours on purpose (grey road, pavement and wall; green car and hedge), so that what a pixel is
depends on what surrounds it: traffic lights sit on poles, cars stand on the road, pavement lies between it and houses.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import cos, exp, pi, sin
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Pair = tuple[float, float]
Triple = tuple[float, float, float]  # a point or a colour

CLASSES: tuple[str, ...] = ("sky", "building", "road", "sidewalk", "vegetation", "pole", "traffic light", "car")
COLOURS: tuple[tuple[int, int, int], ...] = ((70, 130, 180), (90, 90, 90), (128, 64, 128), (244, 35, 232),
    (107, 142, 35), (230, 220, 200), (250, 170, 30), (0, 0, 142))  # fmt: skip
SKY, BUILDING, ROAD, SIDEWALK, VEGETATION, POLE, LIGHT, CAR = range(8)
ROUGH, BRICK, ASPHALT, PAVING, FOLIAGE = range(8, 48, 8)  # materials, added to the class; without one it is smooth
GRAIN, BLOTCH = np.array([[1, 3, 4, 5, 3, 15], [2, 6, 6, 3, 4, 20]], np.float32) / 100  # fine and coarse texture
NEAR, FAR = 2.0, 75.0
WALLS = ((150, 150, 150), (208, 210, 212), (150, 82, 66), (204, 176, 130), (168, 174, 148), (124, 134, 146))
PAINTS = ((28, 28, 32), (225, 225, 225), (130, 132, 136), (150, 28, 30), (36, 62, 118), (70, 98, 50), (196, 160, 50))


class Street:
    """Camera, light and layout of one street, and its canvas."""

    def __init__(self, rng: np.random.Generator, height: int, width: int) -> None:
        self.rng, self.height, self.width, self.focal = rng, height, width, 0.7 * (1.5 * height * width) ** 0.5
        self.centre = (width * rng.uniform(0.36, 0.64), height * rng.uniform(0.42, 0.52))
        self.eye = (rng.uniform(-1.8, 1.8), rng.uniform(2.4, 3.2))
        self.road, self.pavement, self.crossing = rng.uniform((4.2, 3.0, 9.0), (5.0, 4.6, 15.0)).tolist()
        self.wall, self.junction = self.road + self.pavement + (0.0, 0.3, 2.0)[rng.integers(3)], rng.random() < 0.5
        self.sun, self.warmth, self.brightness, self.grit = rng.uniform((0, -0.5, 0.68, 2), (0.5, 1, 1.2, 7)).tolist()
        azimuth, slope = rng.uniform(0, 2 * pi), rng.uniform(0.4, 1.1)
        self.shadow = (-slope * cos(azimuth), -slope * sin(azimuth))  # on the ground, per metre of height
        self.lit = {x: 0.8 + 0.9 * self.sun * (cos(azimuth) * x or -sin(azimuth)) for x in (-1, 0, 1)}  # by normal
        self.haze = self.vary((205 + 30 * self.warmth, 214 - 24 * self.warmth, 222 - 80 * max(0, self.warmth)))
        self.green = self.vary((74, 100, 48) if rng.random() < 0.8 else (140, 104, 44), 0.12)
        # RGBA with class and material as alpha: one fill writes colour and label, so they always agree
        self.canvas, self.shade = Image.fromarray(sky(self)), Image.new("L", (width, height))
        self.brush, self.shadow_brush = ImageDraw.Draw(self.canvas), ImageDraw.Draw(self.shade)

    def vary(self, colour: Triple, amount: float = 0.08) -> Triple:
        """The colour with random brightness and a little random hue."""
        common, r, g, b = (amount * self.rng.standard_normal(4)).tolist()
        return colour[0] * (1 + common + r / 3), colour[1] * (1 + common + g / 3), colour[2] * (1 + common + b / 3)

    def project(self, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        """Pixel at which a point is seen; takes numbers or arrays."""
        scale = self.focal / z
        return self.centre[0] + scale * (x - self.eye[0]), self.centre[1] - scale * (y - self.eye[1])

    def ink(self, colour: Triple, z: float, code: int, light: float = 1.0) -> tuple[int, int, int, int]:
        """Fill value of a surface at depth z: distance fades colours into the haze at the horizon."""
        clear = exp(-z / 160)
        gain, fog, (r, g, b) = light * clear, 1 - clear, self.haze
        return int(gain * colour[0] + fog * r), int(gain * colour[1] + fog * g), int(gain * colour[2] + fog * b), code

    def fill(self, points: Sequence[Triple], colour: Triple, code: int, light: float = 1.0) -> None:
        """Paint a polygon given by its corners in space."""
        self.brush.polygon([self.project(*point) for point in points], self.ink(colour, points[0][2], code, light))

    def ground(self, x: Pair, z: Pair, colour: Triple, code: int) -> None:
        """Paint a rectangle on the ground."""
        self.fill([(x[0], 0, z[0]), (x[1], 0, z[0]), (x[1], 0, z[1]), (x[0], 0, z[1])], colour, code)

    def bar(self, x: Pair, y: Pair, z: float, colour: Triple, code: int) -> None:
        """Paint an upright rectangle that faces the camera and is at least one pixel wide."""
        (left, bottom), (right, top) = self.project(min(x), y[0], z), self.project(max(x), y[1], z)
        left, top, right, bottom = round(left), round(top), round(right) - 1, round(bottom) - 1
        self.brush.rectangle((left, top, max(left, right), max(top, bottom)), self.ink(colour, z, code))

    def cast_shadow(self, foot: Sequence[Pair], height: float) -> None:
        """Darken the ground between a footprint (x, z) and where the sun throws its top."""
        top = [(x + height * self.shadow[0], z + height * self.shadow[1]) for x, z in foot]
        for quad in zip(foot, foot[1:], top[1:], top, strict=False):
            self.shadow_brush.polygon([self.project(x, 0, max(z, NEAR)) for x, z in quad], 255)

    def noise(self, rows: int, columns: int) -> np.ndarray:
        """Smooth noise of unit scale with the given number of blobs along each side."""
        coarse = Image.fromarray(self.rng.standard_normal((rows, columns), np.float32))
        return np.asarray(coarse.resize((self.width, self.height), Image.Resampling.BILINEAR))


def sky(street: Street) -> np.ndarray:
    """Gradient from zenith to horizon with clouds, as the first layer of the canvas."""
    rows, blue, canvas = int(street.centre[1]) + 1, street.sun, np.zeros((street.height, street.width, 4), np.uint8)
    cloud = (street.noise(5, 4) + 0.5 * street.noise(14, 9) + street.rng.uniform(-1.2, 0.4))[:rows].clip(0, 1)
    for c, zenith in enumerate((175 - 180 * blue, 180 - 100 * blue, 188 + 24 * blue)):
        base = np.linspace(zenith, street.haze[c], rows, dtype=np.float32)[:, None]
        canvas[:rows, :, c] = np.minimum(255, base + 0.75 * cloud * (0.4 * street.haze[c] + 140 - base))
    return canvas


def surfaces(street: Street) -> None:
    """Lawn, pavements with kerbs, the road and what is painted on it."""
    edge, stop, grey = street.road, street.crossing, street.rng.uniform(84, 132)
    tone, white = street.vary((grey, grey, grey), 0.04), (grey + 95, grey + 95, grey + 90)
    stone = street.vary((grey + 20, grey + 18, grey + 14) if street.rng.random() < 0.7 else (158, 124, 110))
    street.ground((-200, 200), (NEAR, 400), street.green, VEGETATION + FOLIAGE)
    for side in (-1, 1):
        street.ground((side * edge, side * (edge + street.pavement)), (NEAR, 400), stone, SIDEWALK + PAVING)
        street.ground((side * edge, side * (edge + 0.22)), (NEAR, 400), street.vary(stone, 0.15), SIDEWALK)
    street.ground((-edge, edge), (NEAR, 400), tone, ROAD + ASPHALT)
    if street.junction:
        street.ground((-90, 90), (stop + 4, stop + 11), tone, ROAD + ASPHALT)
    for z in (*range(2, int(stop) - 3, 5), *range(int(stop) + 12, 60, 5)):
        street.ground((-0.09, 0.09), (z, z + 2.4), white, ROAD + ASPHALT)
    street.ground((0, edge), (stop - 1.4, stop - 1.0), white, ROAD + ASPHALT)
    for k in range(int(2 * edge) if street.rng.random() < 0.6 else 0):
        street.ground((k - edge + 0.3, k - edge + 0.8), (stop, stop + 2.6), white, ROAD + ASPHALT)


class Look:
    """Colours and proportions shared by the walls of one building."""

    def __init__(self, street: Street) -> None:
        wall, sign, glass, brick, shop, pitched, bay = street.rng.random(7).tolist()
        self.wall, self.sign = street.vary(WALLS[int(len(WALLS) * wall)], 0.1), PAINTS[int(len(PAINTS) * sign)]
        self.trim, self.glass = street.vary(self.wall, 0.2), street.vary((58, 66, 78) if glass < 0.7 else street.haze)
        self.room = (255.0, 224.0, 140.0) if street.brightness < 0.76 else street.vary(self.glass, 0.2)  # lit at dusk
        self.brick, self.shop, self.pitched, self.bay = brick < 0.5, shop < 0.35, pitched < 0.35, 1.8 + 1.4 * bay


def facade(street: Street, a: Pair, b: Pair, height: float, look: Look, windows: bool = True) -> None:
    """One wall from ground point a = (x, z) to b with its windows, shop front and cornice."""
    dx, dz, light = b[0] - a[0], b[1] - a[1], street.lit[0 if a[0] != b[0] else -1 if a[0] > 0 else 1]
    bands = [(0.0, height, look.wall, BRICK if look.brick and not dx else ROUGH), (height - 0.35, height, look.trim, 0)]
    shop = [(0.4, 2.5, look.glass, 0), (2.6, 3.2, look.sign, 0)] if look.shop and windows else []
    for low, high, colour, material in bands + shop:
        corners = [(a[0], low, a[1]), (b[0], low, b[1]), (b[0], high, b[1]), (a[0], high, a[1])]
        street.fill(corners, colour, BUILDING + material, light)
    seen = abs(street.project(a[0], 0, a[1])[0] - street.project(b[0], 0, b[1])[0])
    columns = windows * min(round((abs(dx) + abs(dz)) / look.bay), int(seen / 3))  # thinner ones would only be noise
    if columns:
        s = (np.arange(columns)[:, None] + 0.5 + 0.12 * look.bay * np.array((-1, 1, 1, -1))) / columns
        y = 3 * np.arange(look.shop, int((height - 0.6) / 3))[:, None, None] + (1.0, 1.0, 2.5, 2.5)
        quads = np.empty((len(y), columns, 4, 2))
        quads[..., 0], quads[..., 1] = street.project(a[0] + s * dx, y, a[1] + s * dz)
        inks = (street.ink(look.glass, b[1], BUILDING), street.ink(look.room, b[1], BUILDING))
        for quad in quads.reshape(-1, 8).tolist():
            street.brush.polygon(quad, inks[street.rng.random() < 0.3])


def building(street: Street, side: int, z: Pair, height: float, detached: bool) -> None:
    """A house on one side of the street: the wall facing the camera, the wall along the street, and the roof."""
    look, x = Look(street), side * street.wall
    back, ridge, top = x + side * 9, x + side * 4.5, height + 2.5
    facade(street, (x, z[0]), (back, z[0]), height, look, windows=detached)
    facade(street, (x, z[0]), (x, z[1]), height, look)
    if look.pitched:
        street.fill([(x, height, z[0]), (back, height, z[0]), (ridge, top, z[0])], look.wall, BUILDING + ROUGH)
        slope = [(x, height, z[0]), (x, height, z[1]), (ridge, top, z[1]), (ridge, top, z[0])]
        street.fill(slope, street.vary((110, 72, 60), 0.2), BUILDING + ROUGH, street.lit[-side])
    street.cast_shadow([(x, z[0]), (x, z[1]), (back, z[1])], height)


def plant(street: Street, x: float, z: float, height: float, trunk: float) -> None:
    """A tree or, without a trunk, a bush: ragged clumps of leaves, the upper ones lit."""
    radius, rng, count = (height - trunk) / 2, street.rng, 8 if trunk and z < 40 else 5
    scale, (u, v) = radius * street.focal / z, street.project(x, trunk + radius, z)
    if trunk:
        street.bar((x - 0.14, x + 0.14), (0, trunk + radius), z, street.vary((84, 70, 56)), VEGETATION)
        street.cast_shadow([(x - radius, z), (x, z + radius), (x + radius, z), (x, z - radius)], trunk + radius)
    angle = np.arange(0, 2 * pi, 2 * pi / min(22, max(8, scale)))
    reach = scale * rng.uniform(0.4, 0.65, (count, 1)) * rng.uniform(0.7, 1.25, (count, len(angle)))
    outline = np.empty((count, len(angle), 2))
    outline[..., 0] = u + scale * rng.uniform(-0.6, 0.6, (count, 1)) + reach * np.cos(angle)
    outline[..., 1] = v + scale * (0.7 - 1.4 * np.arange(count)[:, None] / count) + reach * np.sin(angle)
    for k, points in enumerate(outline.reshape(count, -1).tolist()):
        street.brush.polygon(points, street.ink(street.green, z, VEGETATION + FOLIAGE, 0.6 + 0.6 * k / count))


def post(street: Street, x: float, z: float, height: float, arm: float = 0.0) -> None:
    """A thin pole; an arm of the given reach carries a lamp at its end."""
    tone = street.vary((96, 98, 98), 0.3)
    street.bar((x - 0.08, x + 0.08), (0, height), z, tone, POLE)
    street.bar((x, x + arm), (height - 0.13, height), z, tone, POLE)
    street.bar((x + 0.6 * arm, x + arm), (height - 0.25, height), z, (190, 188, 176), POLE)
    street.cast_shadow([(x - 0.1, z), (x + 0.1, z)], height)


def traffic_light(street: Street, side: int, z: float, mast: bool) -> None:
    """A box of three lamps on a pole, and on a mast a second one over the road."""
    x, arm, on = side * (street.road + 0.5), -side * street.rng.uniform(2.2, 3.4), street.rng.integers(3)
    case = street.vary((34, 36, 36) if street.rng.random() < 0.75 else (150, 124, 40), 0.2)
    post(street, x, z, 5.2 if mast else 3.0, arm * mast)
    for centre, y in ((x, 2.4), (x + arm, 4.2))[: 1 + mast]:
        street.bar((centre - 0.27, centre + 0.27), (y, y + 1.3), z, case, LIGHT)
        for k, (r, g, b) in enumerate(((255, 60, 40), (255, 190, 60), (60, 240, 150))):
            power, low = 1.0 if k == on else 0.25, y + 0.9 - 0.4 * k
            street.bar((centre - 0.15, centre + 0.15), (low, low + 0.3), z, (power * r, power * g, power * b), LIGHT)


def car(street: Street, x: float, z: float, oncoming: bool) -> None:
    """A car whose side outline is swept over its width; z is its near end."""
    length, height, boot, nose = street.rng.uniform((3.8, 1.35, 0.02, 0.7), (4.7, 1.8, 0.16, 0.8)).tolist()
    width, side = 1.8, -1 if x > street.eye[0] else 1
    paint, dark, tyre = street.vary(PAINTS[street.rng.integers(len(PAINTS))], 0.1), (40, 46, 54), (22, 22, 24)
    hull = [(0, 0.16), (0, 0.6), (boot, 0.64), (boot + 0.1, 1), (0.58, 1), (nose, 0.64), (1, 0.52), (1, 0.16)]
    cabin = [(boot + 0.05, 0.67), (boot + 0.13, 0.94), (0.56, 0.94), (nose - 0.05, 0.67)]
    wheel = [(0.3 / length * cos(0.8 * k), 0.3 * (1 + sin(0.8 * k)) / height) for k in range(8)]

    def place(s: float, y: float, w: float) -> Triple:
        return x + width * w, height * y, z + length * (1 - s if oncoming else s)

    def sweep(a: Pair, b: Pair, w: Pair, colour: Triple, light: float = 1.0) -> None:
        street.fill([place(*a, w[0]), place(*b, w[0]), place(*b, w[1]), place(*a, w[1])], colour, CAR, light)

    street.cast_shadow([(x - 0.9, z), (x - 0.9, z + length), (x + 0.9, z + length), (x + 0.9, z)], height)
    for a, b in sorted(pairwise(hull), key=lambda e: e[0][0] + e[1][0], reverse=not oncoming):
        sweep(a, b, (-0.5, 0.5), paint, 1.15 if abs(a[0] - b[0]) > 0.2 else street.lit[0])
        if a[1] != b[1] and max(a[1], b[1]) == 1:
            sweep(a, b, (-0.42, 0.42), dark)
    for w in (-0.46, 0.26):
        sweep((oncoming, 0.4), (oncoming, 0.5), (w, w + 0.2), (240, 236, 214) if oncoming else (176, 24, 26))
        sweep((oncoming, 0), (oncoming, 0.16), (w, w + 0.2), tyre)
    if abs(x - street.eye[0]) > width / 2:  # otherwise its side is hidden
        for outline, colour, at in ((hull, paint, 0), (cabin, dark, 0), (wheel, tyre, 0.19), (wheel, tyre, 0.8)):
            street.fill([place(at + s, y, 0.5 * side) for s, y in outline], colour, CAR, street.lit[side])


def lined(street: Street) -> Iterator[tuple[float, partial[None]]]:
    """Depth and painter of the houses that close the view, the houses along the street, trees and hedges."""
    rng, low, stop = street.rng, street.rng.uniform(5, 9), street.crossing
    for x in range(-45, 45, 15):
        yield FAR + 20, partial(facade, street, (x, FAR), (x + 14.0, FAR), rng.uniform(5, 16), Look(street))
    for side in (-1, 1):
        for front, z in [(stop + 13, FAR), (NEAR, stop + 3)] if street.junction else [(NEAR, FAR)]:
            while z > front + 1:
                z0, gap = max(front, z - rng.uniform(8, 15)), rng.uniform(0.5, 5) * (rng.random() < 0.4)
                yield z, partial(building, street, side, (z0, z), low + rng.uniform(0, 6), gap > 0 or z0 == front)
                z = z0 - gap
        for z in rng.uniform(8, 45, rng.integers(2, 5)).tolist():
            yield z, partial(plant, street, side * (street.road + 0.6 * street.pavement), z, rng.uniform(4, 8), 2.0)
            yield z + 30, partial(plant, street, side * rng.uniform(12, 50), z + 30, rng.uniform(7, 14), 4.0)
            yield z - 1, partial(plant, street, side * (street.wall - 0.3), z - 1, rng.uniform(1, 2.2), 0.0)


def placed(street: Street) -> Iterator[tuple[float, partial[None]]]:
    """Depth and painter of the traffic lights, the lamp posts along the kerbs, parked and driving cars."""
    rng, stop, edge = street.rng, street.crossing, street.road
    for side in (-1, 1):
        yield stop, partial(traffic_light, street, side, stop - 0.3, rng.random() < 0.4)
        for z in np.arange(rng.uniform(5, 12), 60, rng.uniform(12, 18)).tolist():
            yield z, partial(post, street, side * (edge + 0.45), z, rng.uniform(5, 7.5), -1.6 * side)
        free = [z for z in range(6, 48, 6) if not -5 < z - stop < 11 and rng.random() < 0.5]
        driving = [(1.25, rng.uniform(7, 30))] * int(rng.integers(2))
        for x, z in driving + [(edge - 1.1, z - rng.random()) for z in free]:
            # the dark under a car belongs to the road and lies behind everything that stands
            yield 2 * FAR, partial(street.ground, (side * x - 0.95, side * x + 0.95), (z, z + 4), (30, 30, 34), ROAD)
            yield z, partial(car, street, side * x, z, side < 0)


def texture(street: Street, material: np.ndarray, grain: np.ndarray) -> np.ndarray:
    """Brightness of each pixel's material: grain, blotches and, in perspective, bricks and slabs."""
    blotches = BLOTCH[material] * street.noise(street.height // 4, street.width // 4)
    light: np.ndarray = 1 + GRAIN[material] * grain + blotches
    y, x = np.nonzero(material == BRICK // 8)
    metre = street.wall / np.abs(x - street.centre[0])  # per pixel
    course = (street.eye[1] - (y - street.centre[1]) * metre) / 0.4
    bond = street.focal * metre / 0.9 + 0.5 * (np.floor(course) % 2)
    light[y, x] += 0.2 * ((course % 1 < 0.22) | (bond % 1 < 0.12)) * np.minimum(1, 0.1 / metre)
    y, x = np.nonzero(material == PAVING // 8)
    metre = street.eye[1] / np.maximum(y - street.centre[1], 0.5)
    across, ahead = (x - street.centre[0]) * metre + street.eye[0], street.focal * metre
    light[y, x] -= 0.14 * ((across % 0.9 < 0.09) | (ahead % 0.9 < 0.09)) * np.minimum(1, 0.1 / metre)
    return light


def develop(street: Street) -> tuple[np.ndarray, np.ndarray]:
    """Texture, soft shadows, light, a slight blur and sensor noise; returns image and labels."""
    canvas, image = np.asarray(street.canvas), np.empty((street.height, street.width, 3), np.uint8)
    labels, noise = canvas[..., 3] & 7, street.rng.standard_normal((street.height + 12, street.width + 12), np.float32)
    shade = np.asarray(street.shade.filter(ImageFilter.BoxBlur(street.focal / 100)), np.float32)
    shade = 1 - street.sun / 232 * shade * ((labels == ROAD) | (labels == SIDEWALK))
    light = texture(street, canvas[..., 3] >> 3, noise[12:, 12:]) * shade * (1 + 0.06 * street.noise(3, 4))
    for c, cast in enumerate((1 + 0.1 * street.warmth, 1, 1 - 0.15 * street.warmth)):
        plane = canvas[..., c] * (light * (street.brightness * cast))
        for view in (plane, plane.T):
            view[1:-1] += 0.15 * (view[:-2] + view[2:] - 2 * view[1:-1])
        image[..., c] = np.clip(plane + street.grit * noise[4 * c : 4 * c - 12, 4 * c : 4 * c - 12], 0, 255)
    return image, labels


def street_scene(seed: int, height: int = 128, width: int = 192) -> tuple[np.ndarray, np.ndarray]:
    """Image (height, width, 3) and labels (height, width), both uint8, of the street with this seed."""
    street = Street(np.random.default_rng(seed), height, width)
    surfaces(street)
    for _, paint in sorted([*lined(street), *placed(street)], key=lambda thing: -thing[0]):
        paint()
    return develop(street)
